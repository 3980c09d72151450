"""The way of each entry of the source: selected, looked up, decided, and put on the queue.

Not here: chunks and packs (../pieces/), what follows once all has landed (../ending/).
Read next: plan_walk.py, then decide.py.

For other rooms: decide (There, may_check_folders, parse_lookup_row), items (Items), lookups
(DestinationLookup), plan_walk (LOOK_ITEMS, PlanWalk), selection (Settled).
"""

"""One copy: what is to be moved, who moves it, and what is known to have landed.

May import connect/, endpoint/ and what they may.
Not here: how an agent comes to run at the far end (connect/), what it does (endpoint/).
Read next: copy.py.

For other rooms: begin_requests (choose_hash, sink_request, source_request), copy (Run), far_hosts
(FarHosts, connections_to), first_look (least_bytes), lane_pool (LanePool), negotiation
(replace_dead), neighbours (Neighbours), one_place, onward (with_far_source), pools (make_pool,
shared_cpus).
"""

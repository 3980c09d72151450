"""Pieces of a copy's work: chunks of large files, packs of small ones; and the answers
that come for them.

Not here: who carries them (../lanes/). Read next: plan.py.

For other rooms: answers, asked_for (SourceRules, as_pattern, expected_top), plan (Ask, Chunk,
Failure, Job, MEMORY_BYTES, Pack, PackBuilder, Placement, PlannedEntry, QUESTION_BYTES,
QUESTION_ITEMS, Taker, Work, as_new, batches, cut, goes_in_pack, grouped, groups, joined, last_name,
small_together, source_path, subtract, weight_bytes), spool (Spool, grouped_rows,
room_for_temporary_files), states.
"""

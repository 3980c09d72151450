"""The lanes: the queue from which they take work, what is in flight on them, and their two threads.

Not here: how many there are and who opens them (../lane_pool.py), what the work means
(../walk/items.py). Read next: work_queue.py, then lane.py.

For other rooms: autotune (CopyState, LOGIN_TRIPS, LOSSY_S, Path, Start, Tuner,
is_far_and_unattended, is_worth_a_login, lanes_worth, start, usual_lanes), in_flight (LaneShare,
STEADY_S, Window), lane (Lane), lane_context (KbitS, LaneContext, Lost, RateLimiter), lost_work
(revoke_first), relay (FarSource, Packed, RelayEnd, take_named), shared_reads (Reader, SharedReads,
reader_here), work_queue (SIGNAL_S, WorkQueue), worker (Phase, Worker).
"""

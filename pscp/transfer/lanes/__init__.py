"""The lanes: the queue from which they take work, what is in flight on them, and their two threads.

Not here: how many there are and who opens them (../lane_pool.py), what the work means
(../walk/items.py). Read next: work_queue.py, then lane.py.
"""

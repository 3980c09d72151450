"""Replication of ZFS datasets: what zfs send says here, zfs receive reads there, or the reverse.

May import calls/api.py and stream/. Where a received dataset is mounted is decided in
dataset_job.py. Not here: how the bytes travel; a Link (link.py) does that.
Read next: replicate.py (the whole), plan.py (what is sent), commands.py (in zfs's words),
schedule.py (several at once), dataset_job.py (one dataset).

For other rooms: names (check_ends, parse_place), plan (all_in_vain, is_in_vain), replicate
(Replicated, replicate), settings (Settings).
"""

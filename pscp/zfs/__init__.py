"""Replication of ZFS datasets: what zfs send says here, zfs receive reads there, or the reverse.

Not here: how the bytes travel; a Link does that. Read next: replicate.py (the whole), plan.py (what
is sent), commands.py (in zfs's words), work.py (one dataset after the other).
"""

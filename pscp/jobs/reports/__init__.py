"""Reports on runs: while they go on, at their end, and long afterwards.

Nothing here runs a job. Read next: outcome.py, then notifications.py.

For other rooms: history (History, history_of), lock (is_locked, locked, state_path), notifications
(Teller), outcome (CommandRun, DestinationRun, GOOD, JobRun, Outcome, exit_code, worst), page,
report, status, systemd, timers.
"""

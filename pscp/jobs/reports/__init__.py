"""What is told of runs: while they go on, at their end, and long afterwards.

Nothing here runs a job. Read next: outcome.py, then notifications.py.
"""

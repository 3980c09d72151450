"""Bulk pushes that nobody watches: the jobs of pscp-run.

Not here: a copy, and a copy to several destinations (../api.py, ../fan_out.py), the command line of
pscp-run (../cli/run.py).
Read next: job.py, outcome.py.
"""

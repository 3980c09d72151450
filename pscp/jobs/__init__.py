"""Bulk pushes that nobody watches: the jobs of pscp-run.

Not here: a copy, and one to several destinations (../api.py, ../deliveries.py), the command line
of pscp-run (../cli/run.py).
Read next: job.py, outcome.py.
"""

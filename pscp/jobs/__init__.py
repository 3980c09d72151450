"""Bulk pushes that nobody watches: the jobs of pscp-run.

Not here: a copy, and one to several destinations (../calls/api.py, ../calls/deliveries.py), the
command line of pscp-run (../cli/run.py).
Read next: toml/job.py, reports/outcome.py.

For other rooms: attempts (has_found, is_failure, outcome_of, words_of), check, explain, runner
(ordered, run), sources, stopping (NAME).
"""

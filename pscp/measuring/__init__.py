"""What a path can do, measured, and what that advises.

May import calls/api.py, transfer/ and what that may.
Not here: how the report looks (cli/measure_report.py).
Read next: measure.py.
"""

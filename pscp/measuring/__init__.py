"""Measures what a path can do, and advises what follows.

May import calls/api.py, transfer/ and what that may.
Not here: how the report looks (cli/measure_report.py).
Read next: measure.py.

For other rooms: advice (Measurement, Point, Setting, Windows, mib, shown_ms), measure (measure).
"""

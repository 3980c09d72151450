"""A pipe over several lanes: what one command writes here, another reads at the far end.

May import transfer/ and what that may.
Not here: what carries a stream at the far end (endpoint/streams/stream.py).
Read next: stream.py.

For other rooms: pipe (Target), stream.
"""

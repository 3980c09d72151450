"""What moves a stream at either end, and runs its command at the far one.

Sent with a stream's first question. Not here: files (../writing/sink.py).
Read next: stream.py.
"""

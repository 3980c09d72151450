"""The writing of a sink, up to the final name: the fence, parts, commits.

Not here: how what is there already is compared (../there/lookup.py).
Read next: sink.py, then parts.py, commit.py and fence.py.

For other rooms: backup, fence, null_sink, parts, placing, removal, seen, sink, tries, verifying.
"""

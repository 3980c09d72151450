"""The reading of a source: names, the walk, files, metadata. A sink reads its own files so, too.

Not here: what is written (../writing/sink.py).
Read next: files.py, then tree.py and source.py.

For other rooms: files, metadata, ownership, paths, source, synthetic, tree, xattrs.
"""

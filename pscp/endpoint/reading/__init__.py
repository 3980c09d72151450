"""The reading of a source: names, the walk, files, metadata. A sink reads its own files so, too.

Not here: what is written (../writing/sink.py).
Read next: files.py, then tree.py and source.py.

For other rooms: files, metadata, ownership, paths, rows (Listing, NAMES_MOST, Rows, as_listing,
target_of, unpack), source, synthetic, tree, xattrs.
"""

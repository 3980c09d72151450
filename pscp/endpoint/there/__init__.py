"""Files that lie at either end already: looked up, listed, compared, linked, moved and removed.

Each module is sent only when a copy begins that needs it. Not here: the walk of a whole source
(../reading/tree.py).
Read next: lookup.py, then listings.py.

For other rooms: attributes, counting, hardlinks, kernel, leftovers, linkdest, listed_paths,
listings, lookup, mirror, moving, owners, reuse, sameness (alike, is_same_time).
"""

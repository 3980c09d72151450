"""A manifest: which files lie where, and their digests, to be read again years later.

Not here: what a program calls (../calls/verifying.py), the command pscp-verify (../cli/verify.py).
Read next: formats.py.

For other rooms: comparing (Difference, What, compare), formats (Manifest), making (Making),
signing, trees.
"""

"""The request of one copy, and what is known of it: its terms, its list of files, its journal,
what became of its files.

Not here: what is done about it (../walk/, ../ending/). Read next: copy_terms.py.
"""

"""The ground of everything else: errors, notes for -d, values and locations as they are typed,
signals, processes, the state folder, lines for people.

Nothing here knows of copies. Read next: errors.py.
"""

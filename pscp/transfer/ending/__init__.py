"""The end of a copy: links, folders, fence and parts; a mirror deletes, a move removes its sources.

Nothing here sends a byte of a file. Read next: ending.py.

For other rooms: ending (Ending), mirror (Mirror), moving (Moving).
"""

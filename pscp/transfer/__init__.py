"""One copy: what is to be moved, who moves it, and what is known to have landed.

May import connect/, endpoint/ and what they may.
Not here: how an agent comes to run at the far end (connect/), what it does (endpoint/).
Read next: copy.py.
"""

"""The requests of the coordinator to an end, as records, and the table of who answers.

A request is what is asked; a frame (../frames/wire.py) is what carries it to the far end.

Not here: the answers themselves (../there/lookup.py and others, ../serving/end.py).
Read next: requests.py, then answers.py.

For other rooms: answers, entries, requests.
"""

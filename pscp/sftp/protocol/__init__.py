"""SFTP as a client speaks it: packets, requests in flight, files and paths at the server.

Not here: what a copy does with it (../source.py, ../sink.py). Read next: client.py.
"""

"""How one logs in to a host: who is asked, what is remembered of answers and of the host.

Not here: the connections (../connections.py). Read next: authenticator.py.
"""

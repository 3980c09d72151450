"""What is known of a host before anybody is contacted: its setup, and what earlier copies learnt.

May import transports/ and what it may. Not here: who logs in there (../connections.py).
"""

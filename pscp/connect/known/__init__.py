"""Knowledge of a host before anybody is contacted: its setup, and what earlier copies learnt.

May import transports/ and what it may. Not here: who logs in there (../one_host.py).

For other rooms: host_memory (FAR_S, HostMemory, PathRecord, kind_of), host_setup (DirectPath,
HostSetup, SetupSource, setup_key).
"""

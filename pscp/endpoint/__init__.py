"""The code of both ends: reading, writing, naming and verifying files, and the wire between.

This folder is shipped to the far end and run there by any python3 from 3.6 on, so it uses the
standard library only, imports only itself, and keeps to the Python of 3.6. Nothing here knows
about SSH, lanes, plans or the command line. Both ends agree on a hash (frames/hashes.py).
Read next: frames/wire.py (the frames), then reading/files.py (a chunk read, a chunk written),
serving/agent.py (the loop).

For other rooms: nothing.
"""

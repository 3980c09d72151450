"""SFTP as a client speaks it: packets, requests in flight, files and paths at the server.

Not here: what a copy does with it (../source.py, ../sink.py). Read next: client.py.

For other rooms: client, event_loop (Lines, Loop, ReadBuffer, WriteBuffer), files (Extent, File,
Files, Reading, extents_behind, read_all), packets, paths (Root, absolute, is_folder, is_missing,
join, lookup, was_file), remote_hash (CHUNK_BYTES, COMMAND, NEAR_S, Program), tasks.
"""

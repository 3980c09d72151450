"""One copy over many machines that see the files at one end, by the workers of a Dask cluster.

The coordinator plans, asks, commits, deletes and keeps the journal as ever; what moves bytes,
chunks and packs, goes in tasks of some seconds to Dask's workers, each with lanes of its own.
Dask gives the tasks out, and again where a worker is lost.

Not here: several far hosts (../transfer/far_hosts.py), the requests and the fence that keeps out
what comes late (../endpoint/writing/tries.py). Read next: tasks.py.

For other rooms: clusters.
"""

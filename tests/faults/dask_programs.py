"""What Dask's scheduler and workers load, for processes that are forked with it loaded already.

Not here: how they are forked (../forked.py). Read next: test_cluster.py.
"""

import os

os.environ["DASK_TEMPORARY_DIRECTORY"] = "."  # read once, when it is loaded

import distributed.cli.dask_scheduler
import distributed.cli.dask_worker  # noqa: F401

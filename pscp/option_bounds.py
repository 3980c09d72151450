"""Bounds of options that others keep too.

Not here: those of single options (copy_options.py, connection_options.py), what does not go
together (option_pairs.py).
"""

from __future__ import annotations

from pscp.values import KIB, MIB

MANIFEST_FORMATS = ("jsonl", "sha256sum", "bagit")
PROGRESS_STYLES = ("auto", "bar", "plain", "json", "none")

MAX_CONNECTIONS = 256  # each is an ssh process here and one or two at the far end
MIN_CHUNK_BYTES = 256 * KIB  # where blocks are no smaller
CHUNK_BYTES = 4 * MIB  # 2 to 4 MiB did best over wide-area paths; see docs/performance.md
MAX_CHUNK_BYTES = 64 * MIB  # a pull over SFTP holds a chunk of each lane in memory until it matches
MAX_LIMIT_KBIT_S = 10**9  # 1 Tbit/s: more is a slip of the finger
TIMEOUT_S = 30  # ssh itself would wait for as long as the kernel sends SYNs: two minutes
MAX_SECONDS = 365 * 24 * 3600  # more is a slip of the finger
MAX_AGE_S = 1000 * MAX_SECONDS  # of a file

"""The bounds of options: numbers, names, and the patterns of texts.

Not here: what an option means, and what does not go with another (options.py).
"""

from __future__ import annotations

from pscp.values import GIB, KIB, MIB

REMOTES = ("auto", "agent", "sftp")
VERIFIES = ("auto", "read-back", "none")
MANIFEST_FORMATS = ("jsonl", "sha256sum", "bagit")
# auto: openssh where ssh is, else asyncssh
TRANSPORTS = ("auto", "openssh", "asyncssh", "paramiko")
PLANES = ("auto", "ssh", "tls", "plain")  # auto: ssh
PROGRESS_STYLES = ("auto", "bar", "plain", "json", "none")
CHOICES = {
    "manifest_format": MANIFEST_FORMATS, "plane": PLANES, "progress": PROGRESS_STYLES,
    "remote": REMOTES, "transport": TRANSPORTS, "verify": VERIFIES,
}  # fmt: skip

MAX_CONNECTIONS = 256  # each is an ssh process here and one or two at the far end
MAX_CHANNELS = 64  # sshd lets in MaxSessions of them, by default 10 (sshd_config(5))
MIN_BLOCK_BYTES = 4 * KIB  # below, the frame headers and calls cost more than the data
MAX_BLOCK_BYTES = MIB  # a pipe holds no more at once (/proc/sys/fs/pipe-max-size)
MIN_CHUNK_BYTES = 256 * KIB  # where blocks are no smaller
CHUNK_BYTES = 4 * MIB  # 2 to 4 MiB did best over wide-area paths; see docs/performance.md
MAX_CHUNK_BYTES = 64 * MIB  # a pull over SFTP holds a chunk of each lane in memory until it matches
MIN_WINDOW_BYTES = 2 * MIB  # two chunks of a stream
MAX_WINDOW_BYTES = 64 * GIB  # it is memory
MAX_LIMIT_KBIT_S = 10**9  # 1 Tbit/s: more is a slip of the finger
TIMEOUT_S = 30  # ssh itself would wait for as long as the kernel sends SYNs: two minutes
MIN_BUFFER_BYTES = 4 * KIB  # a socket's; below, the kernel takes its own minimum
MAX_BUFFER_BYTES = GIB - 1  # Linux doubles it, in an int
MAX_SECONDS = 365 * 24 * 3600  # more is a slip of the finger
MAX_AGE_S = 1000 * MAX_SECONDS  # of a file
MAX_DELETE = 10**9
MAX_LINK_DEST = 20  # as rsync
MAX_FILTER_BYTES = 512 * 1024  # of their regular expressions: half of what a frame may hold
MAX_CPU = 8191  # CONFIG_NR_CPUS at its largest

# Patterns. `re` compiles one where it is first used, so that a command pays for few of them.
CIPHERS = r"[+^]?[A-Za-z0-9][A-Za-z0-9@._-]*(,[A-Za-z0-9][A-Za-z0-9@._-]*)*"
CONGESTION = r"[A-Za-z0-9_-]{1,15}"  # TCP_CA_NAME_MAX
PERSIST = r"yes|no|(?=.)([0-9]{1,9}[smhdwSMHDW])*([0-9]{1,9})?"  # sshd_config(5), TIME FORMATS

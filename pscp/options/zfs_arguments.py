"""The words of pscp-zfs: its usage, and its parser.

-i, -I, -o, -p, -R, -w and -x mean what they mean to zfs; ssh's are spelled out (--identity).

Not here: its own options (zfs_options.py), the command as a whole (../cli/zfs.py). Read next:
../cli/zfs.py.
"""

from __future__ import annotations

from pscp.options.arguments import Parser, with_tables
from pscp.options.zfs_options import REPLICATED, ZfsOptions

USAGE = "pscp-zfs [options] SOURCE DEST"
DESCRIPTION = (
    "Replicate a ZFS dataset, with its snapshots, over several SSH connections at once. SOURCE or "
    "DEST is [USER@]HOST:POOL/DATASET, the other POOL/DATASET here; DEST becomes what SOURCE is."
)
EPILOG = (
    "Nothing at DEST is destroyed or rolled back unless --force-rollback or --prune says so. Run "
    "the same command again to go on with a replication that was cut short. Exit codes are pscp's."
)


class ZfsArguments:
    """The fields of Options that are none of Settings."""

    dry_run: bool = REPLICATED.flag(
        "-n --dry-run", "show the zfs commands and sizes, and change nothing"
    )


def make_parser() -> Parser:
    return with_tables(Parser("pscp-zfs", USAGE, DESCRIPTION, EPILOG), ZfsOptions, ZfsArguments)

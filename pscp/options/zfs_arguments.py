"""The words of pscp-zfs: its usage, and its parser.

-i, -I, -o, -p, -R, -w and -x mean what they mean to zfs; ssh's are spelled out (--identity).

Not here: its own options (zfs_options.py), the command as a whole (../cli/zfs.py). Read next:
../cli/zfs.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from pscp.ground.errors import UsageError
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


# Words of syncoid and pscp that mean something else here, or nothing: what is so, and what to type.
_OF_SYNCOID: Mapping[str, tuple[str, str]] = {
    "-r": ("all datasets below are -R here, as zfs send has it", "-R, or --recursive"),
    "--no-sync-snap": ("no snapshot is taken unless --snapshot-name is given", "leave it out"),
    "--no-stream": ("the newest snapshot alone is -i here", "-i, or --newest-only"),
    "--no-rollback": ("nothing is rolled back unless --force-rollback is given", "leave it out"),
    "--use-hold": ("what is sent is held by itself, and then released", "leave it out"),
    "--create-bookmark": ("that is --bookmark here", "--bookmark"),
    "--check": ("what would be sent, and what would fail, is shown by -n", "-n, or --dry-run"),
    "--preserve-properties": ("that is -p here", "-p, or --properties"),
    "--exclude-datasets": ("that is --exclude here", "--exclude PATTERN"),
    "--delete-target-snapshots": (
        "only what pscp-zfs took is destroyed",
        "--keep-last N --prune both",
    ),
    "--sendoptions": ("each option of zfs send has its own word", "-w, -p, -i"),
    "--recvoptions": ("each option of zfs receive has its own word", "-o NAME=VALUE, -x NAME"),
    "--source-bwlimit": ("the most to send is --limit here", "--limit RATE, in bit/s"),
    "--target-bwlimit": ("the most to send is --limit here", "--limit RATE, in bit/s"),
    "--sshport": ("the port is -P here", "-P PORT"),
    "--sshkey": ("the key is --identity here", "--identity FILE"),
    "--sshoption": ("ssh's -o is --ssh-option here", "--ssh-option KEY=VALUE"),
    "--no-privilege-elevation": ("no sudo is used unless --zfs-command names it", "leave it out"),
}


class ZfsParser(Parser):
    """The parser of pscp-zfs, which is typed by users of syncoid."""

    def no_such_option(self, text: str, hint: str = "") -> UsageError:
        name = text.partition("=")[0]
        found = _OF_SYNCOID.get(name if name.startswith("--") else name[:2])
        return (
            UsageError(f"{name}: {found[0]}", found[1])
            if found
            else super().no_such_option(text, hint)
        )


class ZfsArguments:
    """The fields of Options that are none of Settings."""

    dry_run: bool = REPLICATED.flag(
        "-n --dry-run", "show the zfs commands and sizes, and change nothing"
    )


def make_parser() -> Parser:
    return with_tables(ZfsParser("pscp-zfs", USAGE, DESCRIPTION, EPILOG), ZfsOptions, ZfsArguments)

"""The options of pscp-zfs: letters, words and help.

-i, -I, -o, -p, -R, -w and -x mean what they mean to zfs; ssh's are spelled out (--identity).

Not here: what the words mean (zfs/settings.py), the command as a whole (zfs.py). Read next: zfs.py.
"""

from __future__ import annotations

import argparse
from functools import partial

from pscp.cli.arguments import (
    Parser,
    add_how_it_is_sent,
    add_how_ssh_is_run,
    add_what_is_shown,
)
from pscp.cli.option_types import size
from pscp.values import parse_number
from pscp.zfs.settings import PLACING, PRUNABLE

USAGE = "pscp-zfs [options] SOURCE DEST"
DESCRIPTION = (
    "Replicate a ZFS dataset, with its snapshots, over several SSH connections at once. SOURCE or "
    "DEST is [USER@]HOST:POOL/DATASET, the other POOL/DATASET here; DEST becomes what SOURCE is."
)
EPILOG = (
    "Nothing at DEST is destroyed or rolled back unless --force-rollback or --prune says so. Run "
    "the same command again to go on with a replication that was cut short. Exit codes are pscp's."
)
OWN_GROUPS = (
    "what is replicated", "what the receiver does with it", "what goes afterwards",
    "how zfs is run",
)  # fmt: skip


def make_parser() -> Parser:
    parser = Parser("pscp-zfs", USAGE, DESCRIPTION, EPILOG)
    parser.conflict_handler = "resolve"  # a letter is the option's that is added last
    what, receiver, afterwards, zfs = (parser.add_argument_group(title) for title in OWN_GROUPS)
    sent = parser.add_argument_group("how it is sent")
    add_how_it_is_sent(sent)
    size(sent, "", "--window", "window_bytes", "memory for a stream's chunks in order (256M)")
    add_how_ssh_is_run(parser.add_argument_group("how ssh is run"))
    add_what_is_shown(parser.add_argument_group("what is shown"))
    add_what_is_replicated(what)
    add_what_the_receiver_does(receiver)
    add_what_goes_afterwards(afterwards)
    add_how_zfs_is_run(zfs)
    return parser


def add_what_is_replicated(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    flag = partial(add, action="store_true")
    flag("-R", "--recursive", help="and all datasets below it, parents first")
    add(
        "--exclude",
        metavar="PATTERN",
        action="append",
        help="leave out what matches, and all below it; a pattern with a / is for the path below "
        "SOURCE, another for a dataset's last name",
    )
    add(
        "-I",
        "--all-between",
        dest="all_between",
        action="store_true",
        help="with all snapshots since the last replication (the default)",
    )
    add(
        "-i",
        "--newest-only",
        dest="all_between",
        action="store_false",
        help="the newest snapshot alone",
    )
    add(
        "--snapshot-name",
        metavar="NAME",
        help="take a snapshot of this name first; {time} in it is the time (UTC)",
    )
    flag("-w", "--raw", help="as they lie on the disk; encrypted ones without their keys")
    flag("-p", "--properties", help="with the datasets' properties")
    flag("-n", "--dry-run", help="show the zfs commands and sizes, and change nothing")


def add_what_the_receiver_does(group: argparse._ArgumentGroup) -> None:
    many = partial(group.add_argument, action="append")
    many("-o", "--set", metavar="NAME=VALUE", dest="set_properties", help="set this property there")
    many("-x", "--leave", metavar="NAME", dest="leave_properties", help="do not take this property")
    flag = partial(group.add_argument, action="store_true")
    flag(
        "--keep-mountpoints",
        help=f"take also {', '.join(PLACING[:-1])} and {PLACING[-1]} from the stream",
    )
    flag("--mount", help="mount what is received (without it, nothing new is mounted)")
    flag(
        "--force-rollback",
        help="throw away what was changed at DEST since the snapshot that both have",
    )
    group.add_argument(
        "--no-readonly",
        dest="readonly",
        action="store_false",
        help="do not set readonly=on on a DEST that is made (it keeps changes there from stopping "
        "the next replication)",
    )


def add_what_goes_afterwards(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--keep-last",
        metavar="N",
        type=partial(parse_number, what="--keep-last"),
        help="of the snapshots that --snapshot-name took for this replication, keep the newest N",
    )
    group.add_argument(
        "--prune",
        metavar="WHERE",
        help=f"where --keep-last destroys the others: {', '.join(PRUNABLE)} (source)",
    )
    group.add_argument(
        "--bookmark",
        action="store_true",
        help="bookmark the newest snapshot that both ends have, at SOURCE: the next increment can "
        "begin with the bookmark when the snapshot is gone",
    )


def add_how_zfs_is_run(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--zfs-command", metavar="COMMAND", help="run this as zfs here, such as 'sudo zfs'")
    add("--far-zfs-command", metavar="COMMAND", help="and this at the far end")
    add(
        "--parallel",
        metavar="N",
        type=partial(parse_number, what="--parallel"),
        help="the number of datasets at once (2)",
    )

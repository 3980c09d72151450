"""The options that say what is copied, and what happens to what is at the destination.

Not here: how it is sent, and everything else (arguments.py), what the words mean (../options.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from pscp.cli.option_types import number, seconds, size


def add_what_is_copied(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    flag = partial(add, action="store_true")
    flag("-r", "--recursive", help="copy folders with what is in them")
    flag("-p", "--preserve", help="keep times and modes")
    flag(
        "-a",
        "--archive",
        help="-r and -p, and keep symlinks, hard links, extended attributes, and owners when root",
    )
    flag("-L", "--copy-links", help="with -a, copy what symlinks lead to instead of the links")
    flag("-x", "--one-file-system", help="do not go into other file systems")
    flag(
        "-R",
        "--relative",
        help="keep the whole path of each source below DEST; after /./ in it, what follows that",
    )
    flag("-n", "--dry-run", help="list what would be copied, and copy nothing")
    add(
        "-T",
        "--no-strict-names",
        dest="strict_names",
        action="store_false",
        help="take the names that the far end gives, even where they do not match what was asked",
    )


def add_which_files(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    for kind, what in (("exclude", "leave out what matches"), ("include", "keep what matches")):
        add(
            f"--{kind}",
            metavar="PATTERN",
            dest="filters",
            action="append",
            type=partial(pair, kind),
            help=f"{what}, as rsync (docs/filters.md); the first of these that matches decides",
        )
        add(
            f"--{kind}-from",
            metavar="FILE",
            dest="filters",
            action=Patterns,
            const=kind,
            help=f"--{kind} for each line of FILE (-: standard input) but # and ; comments",
        )
    add(
        "--files-from",
        metavar="FILE",
        help="copy what FILE lists (-: standard input), one path below SOURCE in each line",
    )
    add(
        "-0",
        "--from0",
        action="store_true",
        help="in the files of --files-from, --exclude-from and --include-from a NUL ends a line",
    )
    for end, most in (("min", "least"), ("max", "most")):
        size(group, "", f"--{end}-size", f"{end}_size_bytes", f"copy files of at {most} SIZE")
        what = f"copy files that were changed at {most} so long ago (90, 30m, 2h, 1d)"
        seconds(group, f"--{end}-age", f"{end}_age_s", what)


def add_what_is_done_there(group: argparse._ArgumentGroup) -> None:
    flag = partial(group.add_argument, action="store_true")
    flag("-u", "--update", help="leave out what is not newer than at the destination")
    flag("--existing", help="copy only what is at the destination already")
    flag("--ignore-existing", help="copy only what is not at the destination")
    flag("--size-only", help="take files of the same size for the same")
    flag(
        "--checksum",
        help="with -p or -a, hash files of the same size and time as well; else they are the same",
    )
    flag("--mkpath", help="make the folders above DEST that are missing")
    flag("--delete", help="delete at the destination what the sources' folders do not have")
    number(
        group,
        "",
        "--max-delete",
        "max_delete",
        metavar="N",
        help="delete nothing where that would be more than N files and folders",
    )
    flag(
        "--remove-source-files",
        help="remove each file of the source that is at the destination, verified and unchanged",
    )
    add_what_stays_there(group)


def add_what_stays_there(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--backup", action="store_true", help="keep what is replaced, as NAME~")
    add("--backup-dir", metavar="DIR", help="keep it below DIR, which is below DEST; with --backup")
    add("--suffix", metavar="SUFFIX", help="what --backup adds to names (~, with DIR nothing)")
    add(
        "--link-dest",
        metavar="DIR",
        action="append",
        help="make hard links to what is unchanged in DIR, which is relative to DEST; as often as "
        "20 times",
    )
    add("--chmod", metavar="MODES", help="change the modes on the way, such as D755,F644 or go-w")
    add("--chown", metavar="USER:GROUP", help="give everything to these, where -a keeps owners")
    add(
        "--numeric-ids",
        action="store_true",
        help="with -a as root, keep the numbers of owners and not their names",
    )


class Patterns(argparse.Action):
    """Adds a pattern for each line of a file; they are read once all options are known."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        listed = [*getattr(namespace, self.dest, []), (f"{self.const}-from", str(values))]
        setattr(namespace, self.dest, listed)


def pair(kind: str, pattern: str) -> tuple[str, str]:
    return kind, pattern

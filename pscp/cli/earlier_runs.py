"""Shows what earlier runs have left: the connections that --persist keeps (`pscp
--list-connections`, `pscp --disconnect [HOST]`), and files of cut copies (`pscp --clean`).

Not here: how connections are found and ended (../connect/persistent.py), how files are found and
removed (../calls/cleaning.py).
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pscp.connect import persistent
from pscp.ground.locations import Location
from pscp.ground.terminal_text import print_line, write_line
from pscp.options.options import Options
from pscp.progress.progress import count, format_bytes, format_duration

if TYPE_CHECKING:
    from pscp.calls.cleaning import Cleaned, Leftover


# --- connections


def show_connections() -> None:
    """List on stdout each connection that is kept: where to, its ssh's process, for how long."""
    for kept in persistent.kept_connections():
        port = f" port {kept.port}" if kept.port else ""
        age = format_duration(max(0.0, time.time() - kept.since_s))
        text = f"{kept.login}{port}: ssh is process {kept.pid}, open for {age}, {_end_of(kept)}"
        print_line(text)


def _end_of(kept: persistent.PersistentConnection) -> str:
    if kept.persist in ("yes", "0"):
        return "stays without limit"
    unit = " s" if kept.persist.isdigit() else ""
    return f"ends {kept.persist}{unit} after its last use"


def disconnect(host: Location | None, options: Options) -> None:
    """End the connections to this host, or all, and say how many there were."""
    ended = persistent.disconnect(host)
    if not options.quiet:
        where = f" to {host.login}" if host is not None else ""
        write_line(sys.stderr, f"{count(len(ended), 'connection')}{where} ended")


# --- files


def show_leftovers(found: Cleaned, where: Location, options: Options) -> None:
    """Write on stdout what was found, and on stderr what could not be read."""
    for failure in found.failures:
        path = _shown_path(where, failure.path)
        write_line(sys.stderr, f"pscp: {path}: {failure.message}")
    if options.progress == "json":
        print_line(json.dumps(dataclasses.asdict(found)))
        return
    copies = [each for each in found.found if not each.was_file]
    files = [each for each in found.found if each.was_file]
    for each in copies:
        print_line(_row(each, where))
    if files:
        what = "files that an earlier version's --inplace has hidden"
        print_line(f"{what}: the only copy, where no file has the name now")
    for each in files:
        print_line(_row(each, where))
    for line in () if options.quiet else _conclusion(found, where, options):
        print_line(line)


def _row(each: Leftover, where: Location) -> str:
    size, age = format_bytes(each.size_bytes), format_age(each.age_s)
    return f"{size:>10}  {age:>7}  {_shown_path(where, each.path)}"


def _shown_path(where: Location, path: str) -> str:
    """Return the path as it can be given to pscp again."""
    slash = "" if where.text.endswith(("/", ":")) or not path else "/"
    return f"{where.text}{slash}{path}"


def _conclusion(found: Cleaned, where: Location, options: Options) -> Iterator[str]:
    if not found.found:
        nothing = "nothing else" if found.held else "nothing"
        yield f"{nothing} that cut copies left lies below {where.text}"
    else:
        size = format_bytes(sum(each.size_bytes for each in found.found))
        what = f"{count(len(found.found), 'file')} that cut copies left, {size}"
        yield f"{what}: removed" if found.removed else f"{what}; --yes removes them"
    if found.held:
        what = f"left alone: {count(len(found.held), 'file')} that a copy works on, or may"
        yield f"{what}; --force takes those that nobody is seen to hold"
        for each in found.held if options.verbose else ():
            yield _row(each, where)
    if found.by_age:
        yield "over SFTP only age tells what no copy works on: what is younger than a day stays"


def format_age(seconds: int) -> str:
    """Return an age, for example: 5 min, 7 h, 12 d."""
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds // unit_s} {unit}"
    return f"{seconds} s"

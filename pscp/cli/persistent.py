"""`pscp --list-connections` and `pscp --disconnect [HOST]`: the connections that --persist keeps.

Not here: how they are found and ended (../connect/persistent.py).
"""

from __future__ import annotations

import sys
import time

from pscp.connect import persistent
from pscp.ground.locations import Location
from pscp.ground.terminal_text import print_line, write_line
from pscp.options.options import Options
from pscp.progress.progress import count, format_duration


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

"""The far end over pscp's own connections: its commands, and streams over several lanes.

Not here: how a stream is cut and put together again (api.py). Read next: ends.py.
"""

from __future__ import annotations

from pscp.errors import NoZfs
from pscp.options import Location, Options
from pscp.zfs.ends import Link


def open_link(host: Location, options: Options) -> Link:
    raise NoZfs("streams are not joined to replication yet")

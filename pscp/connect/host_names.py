"""Which host a message is about, where a copy has two far ends.

Not here: the messages (messages.py), the errors (../errors.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pscp.errors import ConnectError, ProtocolError, PscpError
from pscp.locations import Location


def about(host: Location, text: str) -> str:
    """Return the text with the host's name before it, unless it has that already."""
    name = re.escape(str(host.host))
    return text if re.search(rf"(?<![\w.-]){name}(?![\w.-])", text) else f"{host.login}: {text}"


def named(host: Location, error: PscpError) -> PscpError:
    """Return the error, which names the host from now on if it is about a connection."""
    if isinstance(error, ConnectError | ProtocolError):
        error.args = (about(host, error.message), *error.args[1:])
    return error


def noting(host: Location, note: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that notes what is about the host."""
    return lambda text: note(about(host, text))

"""The lines of known_hosts that are about one host (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT).

Both libraries' programs read revoked keys here: paramiko knows none, and asyncssh forgets those of
`[host]:port` where no other line has that name.

Not here: where the files are, and what is done about a key that is not in them (helper.py).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
from collections.abc import Iterator
from typing import NamedTuple

REVOKED, AUTHORITY = "@revoked", "@cert-authority"


class HostKeyLine(NamedTuple):
    """One line."""

    marker: str  # "": a key of the host's
    kind: str
    key: bytes  # in its wire form (RFC 4253, 6.6)


def known(text: str, name: str) -> Iterator[HostKeyLine]:
    """Yield what these files say of the host of this name; what is malformed is left out."""
    for line in text.splitlines():
        marker, *fields = line.split() if line.lstrip().startswith("@") else ["", *line.split()]
        with contextlib.suppress(ValueError):
            if len(fields) > 2 and _is_named(fields[0], name.lower()):
                yield HostKeyLine(marker, fields[1], base64.b64decode(fields[2], validate=True))


def _is_named(names: str, name: str) -> bool:
    """Return whether a line's first field, a hash or a list of patterns, has this name."""
    if names.startswith("|1|"):
        salt, digest = map(base64.b64decode, names.split("|")[2:])
        return hmac.compare_digest(hmac.digest(salt, name.encode(), hashlib.sha1), digest)
    patterns = names.lower().split(",")
    if any(each[0] == "!" and _fits(each[1:], name) for each in patterns if each):
        return False
    return any(_fits(each, name) for each in patterns)


def _fits(pattern: str, name: str) -> bool:
    """Compare as ssh does: only * and ? stand for others, so brackets are those of a port."""
    words = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(words, name) is not None

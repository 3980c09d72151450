"""rsync's patterns and chmod lists, for the oracle: written from docs/filters.md and names.md.

Not here: which entries are compared with patterns (oracle.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

CLASSES = {b"alpha": b"a-zA-Z", b"digit": b"0-9", b"upper": b"A-Z", b"lower": b"a-z"}
TOKEN = re.compile(rb"/\*\*\*$|\*\*|\*|\?|\[[!^]?\]?(?:\[:\w+:\]|[^\]])*\]|\\.|.", re.DOTALL)
BITS = {"r": 0o444, "w": 0o222, "x": 0o111}
WHO = {"u": 0o700, "g": 0o070, "o": 0o007, "a": 0o777}


def is_kept(filters: Sequence[tuple[str, str]], path: bytes, is_folder: bool) -> bool:
    """Return what the first pattern that matches says; what none matches is kept."""
    for kind, pattern in filters:
        if matches(pattern.encode("utf-8", "surrogateescape"), path, is_folder):
            return kind == "include"
    return True


def matches(pattern: bytes, path: bytes, is_folder: bool) -> bool:
    """Say whether a pattern of --exclude or --include is for this path."""
    if pattern.endswith(b"/"):
        if not is_folder:
            return False
        pattern = pattern[:-1]
    is_wild = any(sign in pattern for sign in (b"*", b"?", b"["))
    tokens = TOKEN.findall(pattern) if is_wild else [re.escape(pattern)]
    regex = b"".join(_regex(token) if is_wild else token for token in tokens)
    if pattern.startswith(b"/"):
        return re.fullmatch(regex.removeprefix(b"/"), path, re.DOTALL) is not None
    if b"/" not in pattern and b"**" not in pattern:
        path = path.rpartition(b"/")[2]
    return re.fullmatch(b"(?:.*/)?(?:" + regex + b")", path, re.DOTALL) is not None


def _regex(token: bytes) -> bytes:
    if token == b"/***":
        return b"(?:/.*)?"
    if token.startswith(b"[") and len(token) > 2:
        inner = re.sub(rb"\[:(\w+):\]", lambda found: CLASSES[found[1]], token[1:-1])
        return b"[" + (b"^" + inner[1:] if inner[:1] in b"!^" else inner) + b"]"
    if token.startswith(b"\\"):
        return re.escape(token[1:])
    return {b"**": b".*", b"*": b"[^/]*", b"?": b"[^/]"}.get(token, re.escape(token))


def change_mode(changes: str, mode: int, is_folder: bool, umask: int) -> int:
    """Return a mode after --chmod."""
    for change in filter(None, changes.split(",")):
        if change[0] in "DF":
            if (change[0] == "D") != is_folder:
                continue
            change = change[1:]
        if change.isdigit():
            mode = int(change, 8)
            continue
        found = re.fullmatch(r"([ugoa]*)([-+=])([rwxX]*)", change)
        assert found, f"the oracle does not know --chmod {change}"
        mask = 0
        for letter in found[1] or "a":
            mask |= WHO[letter]
        bits = sum(BITS[letter] for letter in found[3] if letter != "X")
        if "X" in found[3] and (is_folder or mode & 0o111):
            bits |= BITS["x"]
        bits &= mask & (~umask if not found[1] else 0o7777)
        if found[2] == "=":
            mode = (mode & ~mask) | bits
        else:
            mode = mode | bits if found[2] == "+" else mode & ~bits
    return mode

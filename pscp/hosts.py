"""What is remembered of a host: how many lanes the last copy there used, all without a prompt.

Where that is known, the next copy logs in over several connections at once from its start,
instead of waiting for the first: over 100 ms that is a second and a half. What --measure --save
found best is kept as well. Nothing is lost with this memory, and nothing secret is in it:
{"push": lanes, "pull": lanes, "connections": number, "cipher": name}, a file a host.

Not here: the connections (api.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

from pscp.journal import state_folder, token_of
from pscp.options import MAX_CONNECTIONS, Location, Options


def _file(host: Location, options: Options) -> Path:
    key = token_of(
        str(host.user), str(host.host), str(host.port or options.port),
        options.program, str(options.config_file), str(options.jump),
    )  # fmt: skip
    return state_folder() / "hosts" / f"{key}.json"


def recall(host: Location, options: Options, is_push: bool) -> int:
    """Lanes of the last copy in this direction, else the advised number; 0: none is known."""
    known = _read(_file(host, options))
    return _number(known.get("push" if is_push else "pull")) or _number(known.get("connections"))


def remember(host: Location, options: Options, is_push: bool, lanes: int) -> None:
    _write(_file(host, options), {"push" if is_push else "pull": lanes})


def advice(host: Location, options: Options) -> tuple[int, str]:
    """The connections and the cipher that --measure --save found best; 0 and "": none."""
    known = _read(_file(host, options))
    cipher = known.get("cipher")
    is_name = isinstance(cipher, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9@._-]*", cipher)
    return _number(known.get("connections")), str(cipher) if is_name else ""


def save_advice(host: Location, options: Options, connections: int, cipher: str) -> bool:
    return _write(_file(host, options), {"connections": connections, "cipher": cipher})


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 < value <= MAX_CONNECTIONS else 0


def _read(file: Path) -> dict[str, object]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, values: dict[str, object]) -> bool:
    """Best effort: a state folder that cannot be written is no reason to fail."""
    before = _read(file)
    if before == {**before, **values}:
        return True
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        written = file.with_name(f"{file.name}.{os.getpid()}")
        written.write_text(json.dumps({**before, **values}))
        written.replace(file)
        return True
    return False

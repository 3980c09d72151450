"""Both ends of a copy with hostile bytes between them: an agent, and a whole copy over the bench.

What the agent is asked stays in the scratch folder: paths that a user types are led there, and what
would run a command, or listen, is read and not acted upon. What the coordinator alone chooses (such
paths, tokens, the hash, the filters' expressions) is as it can choose them: it has sent the program
that runs there. All else may come from the other end of the copy, and is hostile.

Not here: the readers alone (readers.py), the connections of the bench (../core/link.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from core import link as bench

from fuzz import mutations, scratch
from pscp import endpoint
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import hashes, system, wire
from pscp.endpoint.serving import agent as agents
from pscp.ground.errors import PscpError

Spaces = list[memoryview]
ENDPOINT = Path(endpoint.__path__[0])
for _path in ENDPOINT.rglob("*.py"):
    if "answers.add(" in _path.read_text():
        importlib.import_module(f"pscp.endpoint.{_path.parent.name}.{_path.stem}")

# Those that run a command, run code, or wait for connections.
_NOT_ANSWERED = ("Gather", "OpenPlane", "Learn", "Dial", "Tell", "PassChunk", "PassPack")
_TYPED = ("path", "root", "paths", "tops", "folder", "socket", "again", "link_dest", "backup")


class Wires:
    """The descriptors of an agent's channel: what comes in, in pieces; what it says is checked."""

    def __init__(self, incoming: bytes) -> None:
        self._left, self._decoder = memoryview(incoming), wire.Decoder()
        self.said: list[tuple[int, int]] = []  # types and ids

    def read(self, spaces: Spaces) -> int:
        total = 0
        for space in spaces:
            count = min(len(space), len(self._left), 5000)
            space[:count], self._left = self._left[:count], self._left[count:]
            total += count
        return total

    def send(self, header: bytes, payload: system.Payload) -> None:
        if isinstance(payload, system.Block | system.Lent):
            payload = bytes(payload.view) + getattr(payload, "check", b"")
        body = bytes(payload)
        self._decoder.feed(header + body)
        frame = self._decoder.next()
        assert frame is not None, "the agent says half a frame"
        if frame.type not in (wire.DATA, wire.DIGEST, wire.PACK, wire.ACK, wire.TICK):
            frame.json()
        self.said.append((frame.type, frame.id))

    def lent(self) -> contextlib.AbstractContextManager[tuple[int, int]]:
        raise BrokenPipeError

    def hang_up(self) -> None:
        pass


def agent(data: bytes) -> None:
    """Each line is a frame, `[type, id, offset, flags, payload]`, for an agent with two trees."""
    work = scratch.folder()
    secret = scratch.outside() / "secret"
    if not secret.exists():
        secret.write_bytes(b"secret")
    for name in ("from/sub", "to/sub", "typed"):
        (work / name).mkdir(parents=True)
    for name in ("from/a", "from/sub/b", "to/a"):
        (work / name).write_bytes(b"abc")
        os.utime(work / name, ns=(10**18, 10**18))
    os.symlink("a", work / "from" / "l")
    os.symlink("../../outside", work / "to" / "out")
    before = _facts(secret)
    served = agents.Agent(Wires(b"".join(_frames(data, str(work)))))  # type: ignore[arg-type]
    with contextlib.suppress(wire.WireError, BrokenPipeError):
        served.run()
    assert _facts(secret) == before and os.listdir(secret.parent) == ["secret"], "it wrote outside"


def _facts(path: Path) -> tuple[object, ...]:
    status = path.stat()
    return path.read_bytes(), status.st_ino, status.st_mtime_ns, status.st_mode, status.st_nlink


def _frames(data: bytes, work: str) -> Iterable[bytes]:
    hasher = hashlib.sha256()
    for line in data.split(b"\n"):
        try:
            type_, id_, offset, flags, value = json.loads(line)
            if type_ == wire.ASK:
                value = _led(value, work)
                if value is None:
                    continue
            elif type_ == wire.DATA and isinstance(value, str):
                hasher.update(_raw(value))
            payload = _payload(type_, value, hasher)
            if type_ == wire.DIGEST:
                hasher = hashlib.sha256()
            id_, offset = id_ & (1 << 64) - 1, offset & (1 << 64) - 1
            yield wire.frame(type_ & 255, payload, id_, offset, flags & 255)
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            continue  # no frame


def _raw(text: object) -> bytes:
    """Return the bytes that a text stands for. Raises TypeError for anything else."""
    if not isinstance(text, str):
        raise TypeError
    return text.encode("latin-1", "replace")


def _payload(type_: int, value: Any, hasher: Any) -> bytes:
    """Return a frame's payload; "right" in a digest's place is the right one."""
    if type_ == wire.GET and type(value) is int:
        return wire.COUNT.pack(value & 0xFFFFFFFF)
    if type_ == wire.DIGEST and isinstance(value, list):
        digest = hasher.digest() if value[1] == "right" else _raw(value[1])
        return wire.COUNT.pack(value[0] & 0xFFFFFFFF) + digest
    if type_ == wire.PACK and isinstance(value, dict):
        bodies = [_raw(each) for each in value["bodies"]]
        for (_, row), body in zip(value["rows"], bodies, strict=False):
            if isinstance(row, list) and row[1] == "right":
                row[1] = hashlib.sha256(body).hexdigest()
        return wire.pack_payload(value["rows"], bodies)
    if isinstance(value, str):
        return _raw(value)
    return wire.to_json(value)


def _led(value: Any, work: str) -> Any:
    """Return a request whose typed paths are in the scratch folder; None where it is only read."""
    if isinstance(value, dict):
        if value.get("ask") in _NOT_ANSWERED:
            with contextlib.suppress(wire.WireError):
                requests.from_json(value)
            return None
        value = {name: _in_scratch(each, work, name in _TYPED) for name, each in value.items()}
        if value.get("hash") not in ("", *hashes.ALGORITHMS):
            value["hash"] = "sha256"
        value.update((name, fit(value[name])) for name, fit in _CHOSEN.items() if name in value)
    return value


def _expressions(rules: Any) -> Any:
    with contextlib.suppress(TypeError, ValueError, re.error, LookupError, RecursionError):
        for _, text in rules[4]:
            re.compile(text.encode("ascii"), re.DOTALL)
        return rules
    return [True, False, True, True, [], False]


def _hex(value: Any) -> Any:
    return re.sub("[^0-9a-f]", "", value)[:16] if isinstance(value, str) else value


# What the coordinator alone chooses, by the names of fields.
_CHOSEN: dict[str, Callable[[Any], Any]] = {
    "modules": lambda value: "",
    "block_bytes": lambda value: value if value in (9, 4096, 65536, 1 << 20) else 65536,
    "token": _hex, "nonce": _hex, "rules": _expressions,
    "known": lambda value: [_hex(each) for each in value] if isinstance(value, list) else value,
}  # fmt: skip


def _in_scratch(value: Any, work: str, is_typed: bool) -> Any:
    if isinstance(value, list):
        return [_in_scratch(each, work, is_typed) for each in value]
    if isinstance(value, dict):
        return {name: _in_scratch(each, work, False) for name, each in value.items()}
    if not isinstance(value, str):
        return value
    if is_typed:
        value = os.fsdecode(value.replace("\0", "").encode("utf-8", "replace"))
    if value in ("/to", "/from") or value.startswith("/from/"):
        return work + value.replace("..", "_")
    if value.startswith(("/", "~")):
        return f"{work}/typed/{value.replace('..', '_')}"
    return "/".join(value.split("/")[:20]).replace("../../..", "../..")


# --- a whole copy

_OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"archive": True}, {"preserve": True, "checksum": True}, {"archive": True, "delete": True},
    {"archive": True, "link_dest": ("../old",)}, {"backup": True}, {"archive": True, "check": True},
    {"remove_source_files": True}, {"strong": True}, {"archive": True, "relative": True},
    {"chown": "root:root", "archive": True}, {"exclude": ["x"]}, {"update": True},
)  # fmt: skip


class Changed(bench.Bench):
    """A bench on which frames of an agent are changed as an input says."""

    def __init__(self, nths: set[int], rng: random.Random) -> None:
        super().__init__(*[
            bench.Fault(number, bench.FROM, nth, _CHANGE) for number in (0, 1) for nth in nths
        ])  # fmt: skip
        self.rng = rng


_CHANGE = "change"


def _meet(
    this: bench.Link, fault: bench.Fault, way: str, frames: list[bytearray]
) -> list[bytearray]:
    if fault.do != _CHANGE:
        return _meet_before(this, fault, way, frames)
    rng = this._bench.rng  # type: ignore[attr-defined]
    found = []
    for frame in frames:
        type_, flags, _, _, id_, offset, _ = wire.HEADER.unpack_from(frame)
        payload = bytes(frame[wire.HEADER.size :])
        if rng.random() < 0.1:
            id_ = rng.choice((id_ + 1 & (1 << 64) - 1, id_))  # the goodbye has the largest there is
            offset = rng.choice((offset + 1, 0, offset))
        if rng.random() < 0.1:
            flags ^= 1 << rng.randrange(3)
        if rng.random() < 0.9:
            payload = _changed_payload(type_, payload, rng)
        found.append(bytearray(wire.frame(type_, payload, id_, offset, flags)))
    return found


_meet_before: Callable[..., list[bytearray]] = bench.Link._meet


def _changed_payload(type_: int, payload: bytes, rng: random.Random) -> bytes:
    if type_ != wire.PACK or len(payload) < 4 or rng.random() < 0.1:
        return mutations.mutated(payload, rng, 1 << 20)
    count = wire.COUNT.unpack_from(payload)[0]
    listed, bodies = payload[4 : 4 + count], payload[4 + count :]
    listed = mutations.mutated(listed, rng, 1 << 19)
    return wire.COUNT.pack(len(listed)) + listed + bodies


def copy(data: bytes) -> None:
    """The first bytes choose a copy, and which frames of the far end change; the rest how.

    It ends, with a result or an error of pscp's own, and has written nothing elsewhere.
    """
    from core.trees import Trees

    head = data[:4].ljust(4, b"\0")
    fields = dict(_OPTIONS[head[0] % len(_OPTIONS)])
    rng = random.Random(data)
    trees = Trees(scratch.folder())
    trees.usual()
    (trees.source / "link").symlink_to("large")
    os.link(trees.source / "large", trees.source / "same")
    if head[1] & 2:
        (trees.to / "folder").mkdir()
        for name in ("large", "folder/small1", "extra"):
            (trees.to / name).write_bytes(b"old" * 30000)
    (trees.folder / "there" / "old").mkdir()
    (trees.folder / "there" / "old" / "large").write_bytes((trees.source / "large").read_bytes())
    secret = trees.folder / "secret"
    secret.write_bytes(b"secret")
    before = _facts(secret)
    is_push = bool(head[1] & 1)
    made = Changed({head[2] % 24, head[3] % 40}, rng)
    try:
        made.copy(trees.source, trees.to, is_push, **fields)
    except PscpError as error:
        assert len(error.message) < 20_000
    finally:
        made.close()
    assert _facts(secret) == before
    assert set(os.listdir(trees.folder)) == {"from", "there", "secret"}
    assert set(os.listdir(trees.to.parent)) <= {"to", "old"}


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Have the bench change frames, and its pauses be short."""
    from unittest import mock

    with contextlib.ExitStack() as stack:
        for module, name, value in bench.QUICK:
            stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(mock.patch.object(bench.Link, "_meet", _meet))
        yield

"""A far end that lies: an ssh for -S that speaks the protocol and keeps to nothing else.

`hostile_agent.py SCENARIO ARGUMENTS...`. A scenario is a class below; its docstring-less methods
are what it answers otherwise than an honest agent with a small tree would. VICTIM in the
environment is a folder beside the destination, which no copy may touch.

Runs the same wire.py as everybody. Not here: what must come of each scenario (test_hostile.py), a
scenario in the test's own process (hostile_channel.py).
"""

import base64
import itertools
import json
import os
import sys
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / "pscp"
if __name__ == "__main__":
    # The endpoint alone: importing all of pscp would take longer than most scenarios.
    package = types.ModuleType("pscp")
    package.__path__ = [str(PACKAGE)]
    sys.modules["pscp"] = package

from pscp.endpoint.frames import hashes, wire  # noqa: E402

EVIL = b"from the far end\n"
EVIL_BYTES = len(EVIL)
LARGE = 300_000  # more than travels in a pack
# The others have their name in small letters.
METHODS = {
    "BeginSource": "begin", "BeginSink": "begin", "BeginStream": "begin",
    "WalkFolders": "walk", "CloseInput": "close_input", "ExtentsThere": "extents",
    "DigestsThere": "digests", "AwaitOutput": "await_output", "AwaitChunks": "await_chunks",
}  # fmt: skip
ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\u202e\x9b31m"


def victim() -> str:
    return os.environ.get("VICTIM", "/nowhere")


def entry(
    kind: str, path: str, size: int = 0, mode: int = 0o644, top: int = 0, **extra: Any
) -> list[Any]:
    return [kind, top, path, size, mode, 10**18, 1, extra]


def file(path: str, size: int = EVIL_BYTES, **fields: Any) -> list[Any]:
    return entry("file", path, size, **fields)


def folder(path: str, **fields: Any) -> list[Any]:
    return entry("folder", path, mode=fields.pop("mode", 0o755), **fields)


def hard_link(path: str, to: object, top: object = 0) -> list[Any]:
    """`top` is the number of the source that `to` is in."""
    extra: dict[str, Any] = {"in": top, "to": to}
    return entry("hardlink", path, **extra)


def content(size: int, offset: int = 0) -> bytes:
    """The same wherever a chunk begins."""
    phase = offset % len(EVIL)
    return (EVIL * (size // len(EVIL) + 2))[phase : phase + size]


class Far:
    """An honest one, with a folder `tree` that has a small and a large file.

    `argument` is what SCENARIO has after its colon; `fds` are its input, output and error.
    """

    def __init__(self, argument: str, fds: tuple[int, int, int] = (0, 1, 2)) -> None:
        self.argument = argument
        self.fd_in = open(fds[0], "rb", closefd=False)  # noqa: SIM115
        self.fd_out, self.fd_error = fds[1:]
        self.known: dict[int, Any] = {}

    def main(self) -> None:
        self.start(self.read_agent())
        self.send(wire.HELLO, payload=wire.to_json(self.hello()))
        while header := self.fd_in.read(wire.HEADER.size):
            length = wire.HEADER.unpack(header)[3]
            decoder = wire.Decoder()
            decoder.feed(header + self.fd_in.read(length))
            frame = decoder.next()
            assert frame is not None, "this was one whole frame"
            self.take(frame)

    def read_agent(self) -> bytes:
        self.fd_in.read(int(self.fd_in.read(8)))
        return self.fd_in.read(16)

    def start(self, marker: bytes) -> None:
        self.raw(marker)

    def raw(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd_out, view) :]

    def send(
        self, type_: int, id_: int = 0, offset: int = 0, payload: bytes = b"", flags: int = 0
    ) -> None:
        self.raw(wire.frame(type_, payload, id_, offset, flags))

    def reply(self, id_: int, answer: object, failed: bool = False) -> None:
        self.send(wire.REPLY, id_, 0, wire.to_json(answer), wire.FAILED if failed else 0)

    def take(self, frame: wire.Frame) -> None:
        if frame.type == wire.ASK:
            asked: Any = frame.json()
            asked["ask"] = METHODS.get(asked["ask"], asked["ask"].lower())
            if asked["ask"] == "pack":
                self.pack(frame.id, asked["files"])
            else:
                self.answer(frame.id, asked)
        elif frame.type == wire.FILE and frame.payload:
            self.known[frame.id] = frame.json()
        elif frame.type == wire.GET:
            self.chunk(frame.id, frame.offset, wire.COUNT.unpack(frame.payload)[0])

    def answer(self, id_: int, asked: dict[str, Any]) -> None:
        self.reply(id_, getattr(self, asked["ask"])(asked))

    # --- what it is asked

    def hello(self) -> Any:
        return {"hashes": {"sha256": 100.0}, "python": "3", "system": "x", "aes": True, "cpus": 2}

    def expand(self, asked: dict[str, Any]) -> object:
        return [[["tree", "/there/tree", True]]]

    def begin(self, asked: dict[str, Any]) -> object:
        return None

    def end(self, asked: dict[str, Any]) -> object:
        return None

    def ping(self, asked: dict[str, Any]) -> object:
        return None

    def walk(self, asked: dict[str, Any]) -> object:
        return [self.entries(), True]

    def count(self, asked: dict[str, Any]) -> object:
        return None

    def stopcounting(self, asked: dict[str, Any]) -> object:
        return None

    def entries(self) -> list[Any]:
        return [folder("tree"), *self.bad(), file("tree/good"), file("tree/large good", LARGE)]

    def bad(self) -> list[Any]:
        return []

    def absent(self, asked: dict[str, Any]) -> object:
        return [[] for _ in asked["folders"]]

    def extents(self, asked: dict[str, Any]) -> object:
        size = asked["file"][2]
        return [[[0, min(size, LARGE)]], True]

    def digests(self, asked: dict[str, Any]) -> object:
        return [[None for _ in extents] for _, extents in asked["files"]]

    def pack(self, id_: int, files: list[Any]) -> None:
        bodies = [content(size) for _, _, size, _, _ in files]
        rows = [[len(body), self.digest(body).hex()] for body in bodies]
        self.send(wire.PACK, id_, 0, wire.pack_payload(rows, bodies))

    def chunk(self, id_: int, offset: int, length: int) -> None:
        body = content(length, offset)
        self.data(id_, offset, body)
        self.complete(id_, offset, length, self.digest(body))

    def data(self, id_: int, offset: int, body: bytes) -> None:
        for begin in range(0, len(body), 1 << 18):
            self.send(wire.DATA, id_, offset + begin, body[begin : begin + (1 << 18)])

    def complete(self, id_: int, offset: int, length: int, digest: bytes) -> None:
        self.send(wire.DIGEST, id_, offset, wire.COUNT.pack(length) + digest)

    def digest(self, body: bytes) -> bytes:
        hasher = hashes.new("sha256")
        hasher.update(body)
        digest: bytes = hasher.digest()
        return digest


class Honest(Far):
    pass


# --- names

NAMES = [
    "tree/../../evil", "tree/..", "..", "../evil", "//VICTIM/evil", "/VICTIM/evil", "",
    "tree//evil", "tree/./evil", "tree/", "tree/a\0b", "other/evil", "tree/\ud800", "tree/../x",
    "tree/a/../../../evil", ".", "./tree/evil", "tree2", "tre", "tree/" + "n" * 300,
]  # fmt: skip


def bad_entries() -> dict[str, list[Any]]:
    """Return what is told between the folder and the good files, by scenarios that are no more."""
    outside = victim()
    names = [name.replace("/VICTIM", outside) for name in NAMES]
    targets = ["tree/users/secret", "tree/../secret", f"{outside}/secret", "../secret", 5, None]
    link = entry("link", "tree/l", to=outside)
    evil = [file("tree/l/evil"), file("tree/l/evil large", LARGE)]
    failures: list[dict[str, Any]] = [
        {"kind": "system", "path": "tree/" + ESCAPES, "message": ESCAPES, "errno": 1 << 99},
        {"kind": "changed", "path": 5, "message": [ESCAPES]},
        {"kind": "unsafe"},
        {"kind": "verify", "path": "x" * 100_000, "message": "y" * 100_000, "errno": "z"},
    ]
    return {
        "Names": [
            made
            for name in names
            for made in (file(name), folder(name), file(name, LARGE), file(name, 0))
        ],
        "NamesOfLinks": [
            *(entry("link", name, to="x") for name in names),
            *(hard_link(name, "tree/good") for name in names),
        ],
        # Of its own making; and after an honest folder of that name was there, maybe held open.
        "ThroughALink": [
            link, *evil, folder("tree/l/evil folder"), entry("link", "tree/l/evil link", to="x"),
        ],
        "LateLink": [folder("tree/l"), file("tree/l/honest"), link, *evil],
        "ThroughTheUsersLink": [
            file("tree/users/evil"), file("tree/users/evil large", LARGE), folder("tree/users"),
        ],
        "HardLinks": [
            *(hard_link(f"tree/h{number}", target) for number, target in enumerate(targets)),
            entry("hardlink", "tree/i1", to="tree/good"), hard_link("tree/i2", "tree/good", 7),
            hard_link("tree/i3", "tree/good", "x"),
        ],
        "UnaskedLinks": [link, hard_link("tree/h", "tree/good")],
        "Excluded": [
            folder("tree/.ssh"), file("tree/.ssh/keys"), file("tree/.ssh/large", LARGE),
            entry("link", "tree/.ssh/link", to="x"), file("tree/sub/.ssh/keys"), file("tree/x.o"),
            hard_link("tree/y.o", "tree/good"),
        ],
        "Modes": [
            file("tree/small", mode=0o6777), file("tree/large", LARGE, mode=0o7777),
            file("tree/before", mode=0o4777), folder("tree/sub", mode=0o7777),
            folder("tree/old", mode=0o7777, new=1),
        ],
        "SamePathTwice": [file("tree/twice"), *[file("tree/twice", LARGE)] * 2] * 3,
        "AFileAndAFolder": [
            file("tree/x"), folder("tree/x"), file("tree/x/y"), file("tree/z/y", LARGE),
            file("tree/z"), file("tree/z", LARGE),
        ],
        "Failures": [["error", 0, "tree/e", 0, 0, 0, 0, each] for each in failures],
        "EscapesInNames": [file(name + ESCAPES) for name in ("tree/", "tree/../", "other")],
    }  # fmt: skip


class Bad(Far):
    """What is bad about it are the entries of this name."""

    def bad(self) -> list[Any]:
        return bad_entries()[self.argument]


class AFolderForAFile(Far):
    def expand(self, asked: dict[str, Any]) -> object:
        return [[["tree", "/there/tree", False]]]


class Unasked(Far):
    """A file for each way to hide one, in the folder whose contents were asked for."""

    def expand(self, asked: dict[str, Any]) -> object:
        return [[["", "/there/.", True]]]

    def entries(self) -> list[Any]:
        return [folder(""), file(".bashrc"), file("evil"), file("evil large", LARGE), folder("f")]


class NoOrder(Far):
    def entries(self) -> list[Any]:
        return [folder("tree"), file("tree/large good", LARGE), file("tree/good")]


class Twice(Far):
    """The folder again, as if it were empty."""

    def entries(self) -> list[Any]:
        return [*super().entries(), folder("tree")]


class Tops(Far):
    """As many tops as SCENARIO names after a colon."""

    def expand(self, asked: dict[str, Any]) -> object:
        return [json.loads(self.argument)]

    def entries(self) -> list[Any]:
        return [file(top[0]) for top in json.loads(self.argument)]


# --- numbers and shapes


class Entries(Far):
    """One entry, given after the colon."""

    def bad(self) -> list[Any]:
        return [json.loads(self.argument)]


class Answers(Far):
    """[question, answer, whether it is told as a failure] after the colon."""

    def entries(self) -> list[Any]:
        return [*super().entries(), file("tree/sparse", 1 << 20, sparse=1)]

    def hello(self) -> Any:
        question, answer, _ = json.loads(self.argument)
        return answer if question == "hello" else super().hello()

    def answer(self, id_: int, asked: dict[str, Any]) -> None:
        question, answer, failed = json.loads(self.argument)
        if asked["ask"] == question:
            self.reply(id_, answer, failed)
        else:
            super().answer(id_, asked)


class DeepAnswer(Far):
    def answer(self, id_: int, asked: dict[str, Any]) -> None:
        if asked["ask"] == self.argument:
            half = wire.MAX_PAYLOAD_BYTES // 2
            self.send(wire.REPLY, id_, 0, b"[" * half + b"]" * half)
        else:
            super().answer(id_, asked)


class RoundTrip(Far):
    """RoundTrip:nan: a HELLO with a round trip's time, which only SFTP's programs tell."""

    def hello(self) -> Any:
        return {**super().hello(), "rtt_s": float(self.argument)}


class DeepHello(Far):
    def hello(self) -> Any:
        half = wire.MAX_PAYLOAD_BYTES // 2
        self.send(wire.HELLO, 0, 0, b"[" * half + b"]" * half)
        return {}


class ManyTops(Far):
    """As many as fit, each with a name of its own."""

    def expand(self, asked: dict[str, Any]) -> object:
        return [[[f"{number:x}", "", False] for number in range(50_000)]]

    def entries(self) -> list[Any]:
        return []


class OneByOne(Far):
    """One entry an answer."""

    left = None

    def walk(self, asked: dict[str, Any]) -> object:
        if self.left is None or asked["restart"]:
            self.left = self.entries()
        return [[self.left.pop(0)], not self.left]


class Counted(OneByOne):
    """Counted:JSON: what is counted ahead of the walk."""

    def count(self, asked: dict[str, Any]) -> object:
        return json.loads(self.argument)


class Listings(Far):
    """A folder's listing with names that lead elsewhere, or that is none, or much too long."""

    def entries(self) -> list[Any]:
        from pscp.endpoint.reading.rows import Rows

        names = [b"../../beside/x", b"/etc/x", b"..", b"", b".x.01234567.pscp-part", b"good"]
        modes, sizes, times = ([number] * len(names) for number in (0o100644, EVIL_BYTES, 10**18))
        rows = Rows(names, modes, sizes, times, {})
        bomb = base64.b64encode(zlib.compress(bytes(1 << 26))).decode()
        text = {"names": rows.pack(), "bomb": bomb, "noise": "AAAA"}[self.argument]
        return [folder("tree", list=[text, len(names), True, None, "", ""])]

    def describe(self, asked: dict[str, Any]) -> object:
        paths = [f"{path}/{name}" for _, path, names in asked["names"] for name in names]
        return [[file(path) for path in paths], len(paths)]


class Attributes(OneByOne):
    def bad(self) -> list[Any]:
        large = base64.b64encode(bytes(60_000)).decode()
        found: list[dict[str, Any]] = [
            {"x": {"user.large": large}}, {"x": {"user.\0": "AA=="}},
            {"x": {"user.\ud800": "AA=="}}, {"x": {"user.a": "no base64"}},
            {"x": {"user." + "n" * 300: "AA=="}}, {"x": {"security.capability": "AQAAAg=="}},
            {"x": {"trusted.a": "AA=="}}, {"x": {"system.posix_acl_access": "AA=="}},
            {"x": {f"user.{number}": large for number in range(8)}},
            {"o": [-1, -1, None, None]}, {"o": [1 << 40, 1 << 70, [], {}]}, {"o": 5},
            {"o": ["root", "root", 5, 5]}, {"o": [1e400, 0.5, "", ""]}, {"o": [True, 0]},
            {"a": 1 << 200}, {"a": -(1 << 62)}, {"a": "x"}, {"a": None}, {"sparse": "x"},
        ]  # fmt: skip
        kinds: list[Callable[..., list[Any]]]
        kinds = [file, lambda path, **extra: file(path, LARGE, **extra), folder]
        kinds += [lambda path, **extra: entry("link", path, to="x", **extra)]
        return [
            kind(f"tree/{number}-{which}", **extra)
            for number, extra in enumerate(found)
            for which, kind in enumerate(kinds)
        ]


# --- chunks and packs


class UnaskedData(Far):
    def begin(self, asked: dict[str, Any]) -> None:
        self.send(wire.DATA, 1, 0, EVIL)


class UnaskedAck(Far):
    def begin(self, asked: dict[str, Any]) -> None:
        self.send(wire.ACK, 1, 0, wire.LANDED.pack(5, 1))


class Chunks(Far):
    """What a chunk is answered with: one of these, after the colon."""

    def chunk(self, id_: int, offset: int, length: int) -> None:
        body, count = content(length), wire.COUNT.pack(length)
        less = self.digest(content(length - 1))
        blocks, digest = {
            "before": ([(id_, max(offset - 10, 0), body), (id_, offset + 7, EVIL)], None),
            "longer": ([(id_, offset, content(length + 1))], None),
            "of_another": ([(id_ + 1, offset, body)], None),
            "too_little": ([(id_, offset, content(length - 1))], count + less),
            "short_digest_frame": ([(id_, offset, body)], b"\0"),
            "wrong_digest": ([(id_, offset, body)], count + self.digest(b"else")),
            "failure_of_another_shape": ([], count + b"[]"),
            "empty": ([], None),
        }[self.argument]
        for block in blocks:
            self.data(*block)
        if self.argument == "empty":
            self.send(wire.DATA, id_, offset, b"")
        if digest is not None:
            self.send(wire.DIGEST, id_, offset, digest, 0 if blocks else wire.FAILED)


class Packs(Far):
    """What a pack is answered with: one of these, after the colon."""

    def pack(self, id_: int, files: list[Any]) -> None:
        bodies = [content(size) for _, _, size, _, _ in files]
        rows = [[len(body), self.digest(body).hex()] for body in bodies]
        answers: dict[str, tuple[Any, list[bytes]]] = {
            "digests_of_another_shape": ([[size, None] for size, _ in rows], bodies),
            "fewer_rows": (rows[:-1], bodies),
            "more_rows": ([*rows, rows[0]], bodies),
            "no_rows": (None, bodies),
            "more_bytes": (rows, [*bodies, EVIL]),
        }
        self.send(wire.PACK, id_, 0, wire.pack_payload(*answers[self.argument]))


# --- streams


class Output(Far):
    """What its command said, and how it ended: given after the colon."""

    def gather(self, asked: dict[str, Any]) -> object:
        return "/nowhere"

    def await_output(self, asked: dict[str, Any]) -> object:
        honest: dict[str, Any] = {"said": [], "status": None, "deaf": False, "failure": None}
        return {**honest, **json.loads(self.argument)}

    def abort(self, asked: dict[str, Any]) -> object:
        return None

    close_input = await_chunks = abort


# --- bytes


class Frames(Far):
    """Bytes in hex after the colon, in the place of an answer."""

    def begin(self, asked: dict[str, Any]) -> None:
        self.raw(bytes.fromhex(self.argument))


class EndlessBanner(Far):
    def start(self, marker: bytes) -> None:
        while True:
            self.raw(b"welcome " * 1000)


class Banner(Far):
    def start(self, marker: bytes) -> None:
        self.raw(ESCAPES.encode() + b"\n")
        super().start(marker)


class SaysAndEnds(Far):
    def start(self, marker: bytes) -> None:
        os.write(self.fd_error, (ESCAPES + " is what I say\n").encode())
        os._exit(ord(self.argument))


class EndlessTalk(Far):
    """On standard error, while the connection is up and when it has ended."""

    def begin(self, asked: dict[str, Any]) -> None:
        os.close(self.fd_out)
        while True:
            os.write(self.fd_error, b"blah " * 1000 + b"\n")


# --- without an end


class EndlessFailures(Far):
    """A walk that goes on and on; here it ends, so that the test does."""

    number = itertools.count()

    def walk(self, asked: dict[str, Any]) -> object:
        batch = []
        for _ in range(100):
            path, message = f"tree/{next(self.number)}" + "p" * 3000, "m" * 3000
            failure = {"kind": "system", "path": path, "message": message}
            batch.append(["error", 0, "tree/e", 0, 0, 0, 0, failure])
        return [batch, next(self.number) > 20_000]


class EndlessOwners(Far):
    """Each with a long name of its own; here they end, as above."""

    number = itertools.count()

    def walk(self, asked: dict[str, Any]) -> object:
        numbers = list(itertools.islice(self.number, 20))
        batch = [file(f"{number}", o=[5, 5, f"{number}" + "n" * 40_000, ""]) for number in numbers]
        return [batch, numbers[-1] >= 2999]

    def expand(self, asked: dict[str, Any]) -> object:
        return [[["", "/there/tree/.", True]]]


class EndlessExtents(Far):
    """Of one byte each, and told much faster than they are sent."""

    asked = sent = 0

    def entries(self) -> list[Any]:
        return [folder("tree"), file("tree/sparse", 1 << 40, sparse=1), file("tree/good")]

    def extents(self, asked: dict[str, Any]) -> object:
        self.asked += 1
        begin = asked["offset"]
        return [[[begin + 2 * number, 1] for number in range(40_000)], self.asked > 40]

    def chunk(self, id_: int, offset: int, length: int) -> None:
        self.sent += 1
        if self.sent < 10_000:
            super().chunk(id_, offset, length)
        else:
            failure = {"kind": "system", "path": "tree/sparse", "message": "no more", "errno": 5}
            payload = wire.COUNT.pack(length) + wire.to_json(failure)
            self.send(wire.DIGEST, id_, offset, payload, wire.FAILED)


def scenario(text: str, *fds: Any) -> Far:
    """Make the far end that SCENARIO, with its argument, stands for."""
    name, _, argument = text.partition(":")
    made: type[Far] | None = globals().get(name)
    return made(argument, *fds) if made else Bad(name, *fds)


def main() -> None:
    try:
        scenario(sys.argv[1]).main()
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()

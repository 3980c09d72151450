"""A lane's program that breaks as planned: relays another's stdin and stdout, frame by frame.

`relay FOLDER KIND COMMAND...`: FOLDER/plan.json is a list of rules. KIND tells what is at the
other end: an agent, which is sent first, or sftp. Each connection counts the frames' bytes in each
direction and does what the rules say once a frame has come that far:

    way          "to" (to the far end) | "from"
    connections  numbers in the order of their start; null for all of them
    type         of the frames that are counted and hit (endpoint/frames/wire.py); null for any
    contains     only frames with this in their payload
    after        bytes of such frames' payloads that pass before
    do           flip (bit `bit` of byte `at` of the frame) | kill | stop | block | refuse
    always       every such frame from there on, instead of the first

block: touches FOLDER/blocked-NUMBER, and goes on when FOLDER/go is there; with a `gate` of another
name than "go", FOLDER/blocked-NUMBER-GATE and FOLDER/GATE. kill and stop are signals to this
process, which is what the client has for an ssh or the like. refuse: no connection at all.

Runs with nothing but the standard library: python -I -S. It is started for every connection, so of
that it loads little: with subprocess, json, pathlib, typing and signal (enum) a start takes three
times as long.

Not here: who runs it (interposed.py), the same at the far end (far_end.py).
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _thread
import os
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Rule = dict[str, Any]  # as above

HEADER = struct.Struct(">BBHIQQI")
MARKER_BYTES = 16
POLL_S = 0.002


class Stream:
    """Exact reads from a descriptor; what cannot be filled any more is what there was."""

    def __init__(self, fd: int) -> None:
        self.fd, self.buffer = fd, bytearray()

    def read(self, count: int) -> bytes:
        while len(self.buffer) < count:
            if not self.more():
                break
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def more(self) -> int:
        data = os.read(self.fd, 1 << 20)
        self.buffer += data
        return len(data)


class Relay:
    def __init__(self, folder: str, rules: list[Rule], number: int, is_sftp: bool) -> None:
        self.folder, self.number, self.is_sftp = folder, number, is_sftp
        self.rules = [rule for rule in rules if number in (rule["connections"] or [number])]
        self.marker = b""
        self.incoming = Stream(0)
        self.no_marker = _thread.allocate_lock()
        self.no_marker.acquire()

    def run(self, argv: list[str]) -> int:
        if any(rule["do"] == "refuse" for rule in self.rules):
            sys.stderr.write("ssh: connect to host there port 22: Connection refused\n")
            return 255
        (its_stdin, to), (from_, its_stdout) = os.pipe(), os.pipe()
        its = [(os.POSIX_SPAWN_DUP2, its_stdin, 0), (os.POSIX_SPAWN_DUP2, its_stdout, 1)]
        restored = [signal.SIGPIPE, signal.SIGXFSZ]  # which Python ignores
        child = os.posix_spawnp(argv[0], argv, os.environ, file_actions=its, setsigdef=restored)
        os.close(its_stdin)
        os.close(its_stdout)
        _thread.start_new_thread(self.there, (to,))
        try:  # noqa: SIM105
            self.back(from_)
        except OSError:
            pass
        os.close(from_)  # or ssh would wait for ever for somebody to read the rest
        os.close(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def there(self, to: int) -> None:
        stream = self.incoming
        try:
            length = b"" if self.is_sftp else stream.read(8)
            program = stream.read(int(length or 0))
            self.marker = stream.read(MARKER_BYTES)
            self.no_marker.release()
            write(to, length + program + self.marker)
            self.frames("to", stream, to)
        except OSError:
            pass
        os.close(to)

    def back(self, fd: int) -> None:
        stream = Stream(fd)
        self.no_marker.acquire()
        while self.marker not in stream.buffer and stream.more():
            pass
        end = stream.buffer.find(self.marker) + MARKER_BYTES
        write(1, stream.read(max(end, 0)))
        self.frames("from", stream, 1)

    def frames(self, way: str, stream: Stream, fd: int) -> None:
        rules = [{**rule, "passed": 0} for rule in self.rules if rule["way"] == way]
        while True:
            frame = bytearray(stream.read(HEADER.size))
            if len(frame) == HEADER.size:
                type_, length = HEADER.unpack(frame)[0:4:3]
                frame += stream.read(length)
                self.meet(rules, type_, frame)
            if not frame:
                return
            write(fd, frame)

    def meet(self, rules: list[Rule], type_: int, frame: bytearray) -> None:
        for rule in list(rules):
            payload = frame[HEADER.size :]
            if rule["type"] not in (None, type_) or rule["contains"].encode() not in payload:
                continue
            passed = rule["passed"]
            rule["passed"] += len(payload)
            if passed >= rule["after"]:
                if not rule["always"]:
                    rules.remove(rule)
                getattr(self, rule["do"])(rule, frame)

    def flip(self, rule: Rule, frame: bytearray) -> None:
        frame[rule["at"] % len(frame)] ^= 1 << rule["bit"]

    def kill(self, rule: Rule, frame: bytearray) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self, rule: Rule, frame: bytearray) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def block(self, rule: Rule, frame: bytearray) -> None:
        gate = rule["gate"]
        blocked = f"blocked-{self.number}" + ("" if gate == "go" else f"-{gate}")
        touch(f"{self.folder}/{blocked}")
        client = select.poll()
        client.register(0, 0)  # tells only that the other end has closed it
        while not os.path.exists(f"{self.folder}/{gate}"):
            if client.poll(0):
                os._exit(1)
            time.sleep(POLL_S)


def write(fd: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def touch(path: str, flags: int = 0) -> None:
    os.close(os.open(path, os.O_CREAT | flags))


def take_number(folder: str) -> int:
    number = 0
    while True:
        try:
            touch(f"{folder}/connection-{number}", os.O_EXCL)
            return number
        except FileExistsError:
            number += 1


def rules_in(path: str) -> list[Rule]:
    """What json would load."""
    with open(path) as file:
        rules: list[Rule] = eval(file.read(), {"true": True, "false": False, "null": None})
    return rules


def main() -> None:
    folder, is_sftp = sys.argv[1], sys.argv[2] == "sftp"
    rules = rules_in(f"{folder}/plan.json")
    status = Relay(folder, rules, take_number(folder), is_sftp).run(sys.argv[3:])
    os._exit(status if status >= 0 else 255)

"""The way onward, from the source's host to the sink's (--direct): an ssh that this agent runs.

What the coordinator has for the sink's agent, and what that answers, passes through here; chunks
and packs of the source go to it from here. The agent's loop writes to ssh, so its frames stay
whole; a thread passes on what comes back. ssh is ended with the agent, and once the coordinator is
gone: the loop may be waiting for a sink that stands still.

Sent with Learn. Not here: the coordinator's side (../../connect/onward.py), what a source sends
(../reading/source.py).
"""

import atexit
import base64
import contextlib
import os
import select
import subprocess
import threading
from typing import Callable, Dict, List, NamedTuple

from ..asking import answers
from ..frames import system, wire
from ..reading import source, tree
from ..reading.source import SourceFile
from ..reading.tree import Entry
from . import end

_READ_BYTES = 64 * 1024
_END_S = 2.0  # ssh has this time to end, once it has closed its output
OUTPUT, ERRORS = 1, 2  # which of its outputs


class Dial(NamedTuple):
    """Run ssh to the sink's host. Answer: again and again `[1, output]` or `[2, errors]` (base64);
    at last its exit status.
    """

    words: List[str]  # its command line
    text: str  # the first bytes of its input (base64)


class Tell(NamedTuple):
    """Pass whole frames on to the sink's agent. Answer: none."""

    text: str  # (base64)


class PassChunk(NamedTuple):
    """Send a chunk to the sink's agent. Answer: `[flags, payload]` of its DIGEST frame (hex)."""

    id: int  # of the file, at both ends
    offset: int
    length: int


class PassPack(NamedTuple):
    """Send small files, whole, to the sink's agent. Answer: per file `[size, digest]`, or why it is
    not among them.
    """

    number: int  # of the PACK frame, and of its answer
    files: List[SourceFile]
    entries: List[Entry]  # what they are at the sink


class Onward:
    """The ssh to the sink's host."""

    def __init__(self, request: Dial, reply: answers.Reply) -> None:
        """Raises OSError where there is no ssh here."""
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(
            request.words, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
        atexit.register(self._child.kill)
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._fd = self._child.stdin.fileno()
        self._outputs = {self._child.stdout.fileno(): OUTPUT, self._child.stderr.fileno(): ERRORS}
        for fd in (self._fd, *self._outputs):
            system.widen_pipe(fd)
        self.tell(request.text)
        threading.Thread(target=self._listen, args=(reply,), name="onward", daemon=True).start()

    def tell(self, text: str) -> None:
        with _unless_ended():
            system.write_all(self._fd, [base64.b64decode(text)])

    def send(
        self, type_: int, id_: int, offset: int, payload: system.Payload, flags: int = 0
    ) -> None:
        header = wire.header(type_, payload, id_, offset, flags)
        with _unless_ended():
            system.send(self._fd, header, payload)

    def _listen(self, reply: answers.Reply) -> None:
        try:
            with contextlib.suppress(OSError):  # the coordinator is gone
                reply(self._passed_on(reply), False)
        finally:
            self._child.kill()

    def _passed_on(self, reply: answers.Reply) -> int:
        """Pass on what ssh writes; return its exit status. Raises OSError without a coordinator."""
        waiting = select.poll()
        for fd in (0, 1):
            waiting.register(fd, 0)  # poll(2) tells of the other end's end in any case
        for fd in self._outputs:
            waiting.register(fd, select.POLLIN)
        while self._outputs:
            for fd, _ in waiting.poll():
                if fd in (0, 1):
                    raise BrokenPipeError
                data = os.read(fd, _READ_BYTES)
                if data:
                    reply([self._outputs[fd], base64.b64encode(data).decode("ascii")], False)
                else:
                    waiting.unregister(fd)
                    del self._outputs[fd]
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._child.wait(_END_S)
        self._child.kill()
        return self._child.wait()


def _unless_ended() -> "contextlib.AbstractContextManager[None]":
    """Let what is written to an ssh that has ended be lost: its exit status tells the rest."""
    return contextlib.suppress(BrokenPipeError)


# --- the requests

_ONWARD: Dict[end.End, Onward] = {}  # an agent's one end has one
Later = Callable[[answers.Reply], None]


def _of(of: end.End) -> Onward:
    if of not in _ONWARD:
        raise answers.not_here("way onward")
    return _ONWARD[of]


def _dial(of: end.End, request: Dial) -> Later:
    if of in _ONWARD:
        raise wire.WireError("a second way onward")

    def later(reply: answers.Reply) -> None:
        _ONWARD[of] = Onward(request, reply)

    return later


def _tell(of: end.End, request: Tell) -> Later:
    _of(of).tell(request.text)
    return lambda reply: None


def _pass_chunk(of: end.End, request: PassChunk) -> Later:
    onward, from_ = _of(of), of.the_source()

    def later(reply: answers.Reply) -> None:
        def send(
            type_: int, id_: int, offset: int, payload: system.Payload, flags: int = 0
        ) -> None:
            if type_ == wire.DIGEST and isinstance(payload, bytes):
                reply([flags, payload.hex()], False)  # first: the sink's ACK must not overtake it
            onward.send(type_, id_, offset, payload, flags)

        from_.send_chunk(request.id, request.offset, request.length, send)

    return later


def _pass_pack(of: end.End, request: PassPack) -> Later:
    onward, from_ = _of(of), of.file_source()
    are_files = [entry.kind == tree.FILE for entry in request.entries]
    if len(request.files) != sum(are_files):
        raise wire.WireError("a pack of other files than are listed")

    def later(reply: answers.Reply) -> None:
        rows, bodies = from_.pack([source.entry_of(file) for file in request.files])
        reply(rows, False)  # first, as with a chunk
        left = iter(rows)
        all_rows: List[source.Row] = [next(left) if is_file else [0, ""] for is_file in are_files]
        packed = wire.pack_payload(list(zip(request.entries, all_rows)), bodies)
        onward.send(wire.PACK, request.number, 0, packed)

    return later


answers.add(
    answers.ITSELF, {Dial: _dial, Tell: _tell, PassChunk: _pass_chunk, PassPack: _pass_pack}
)

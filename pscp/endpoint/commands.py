"""What is at the far end of a stream: a command, or a file that is read or written.

Each has `fd`, a descriptor for the stream, and the same few methods. A command sees the end of
its input only after close_input(); in any other case it is ended first, while its input is still
open. A file has its name only after close_input().

Not here: the stream (pipes.py), its lanes (gather.py).
"""

import os
import signal
import stat
import subprocess
import threading
import time
from typing import Any, Callable, List, Tuple

from . import failures, files, machine
from .names import part_name, to_bytes

TERM_S = 5.0  # from SIGTERM to SIGKILL
_KILL_S = 60.0  # then it hangs in the kernel
_POLL_S = 0.02
_SAID_BYTES = 64 * 1024  # of what a command says, kept until it was heard
_LET_GO = b"."


class Said:
    """What comes out of a descriptor, kept until it was heard."""

    def __init__(self, file: Any, told: Callable[[], None]) -> None:
        """`told` is called when there is more."""
        self._file, self._told = file, told
        self._changed = threading.Condition()
        self._text = b""
        self._heard = 0  # bytes, from the first on
        self.thread = threading.Thread(target=self._run, name="said", daemon=True)
        self.thread.start()

    def after(self, count: int) -> bytes:
        """What came after so many bytes; those are forgotten."""
        with self._changed:
            self._text = self._text[max(count - self._heard, 0) :]
            self._heard = max(self._heard, count)
            self._changed.notify_all()
            return self._text

    def _run(self) -> None:
        while True:
            data = os.read(self._file.fileno(), 4096)
            if not data:
                return
            with self._changed:
                while len(self._text) >= _SAID_BYTES:
                    self._changed.wait()
                self._text += data
            self._told()


class Command:
    """A program at this end. The stream is its standard input (sink) or output (source)."""

    def __init__(self, argv: Any, is_sink: bool, told: Callable[[], None]) -> None:
        """`argv` is a list, executed as it is, or a text for the user's shell. Raises OSError."""
        if isinstance(argv, str):
            argv = [os.environ.get("SHELL") or "/bin/sh", "-c", argv]
        reads, writes = os.pipe()
        self.fd, its_fd = (writes, reads) if is_sink else (reads, writes)
        machine.widen_pipe(self.fd)
        try:
            self._process = subprocess.Popen(
                [to_bytes(word) for word in argv],
                stdin=its_fd if is_sink else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_sink else its_fd,
                stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(self.fd)
            raise
        finally:
            os.close(its_fd)
        outputs = [each for each in (self._process.stdout, self._process.stderr) if each]
        self.said: List[Said] = [Said(each, told) for each in outputs]  # (output,) errors
        self._lock = threading.Lock()
        # (descriptor, pid) of the keeper
        self._keeper = _start_keeper(self._process.pid, self.fd) if is_sink else None

    def close_input(self) -> None:
        """All of it was written: the command may see the end, once close() was called as well."""
        self._let_go()

    def close(self) -> None:
        """Nobody reads or writes the stream any more."""
        os.close(self.fd)

    def wait(self) -> int:
        """Its exit status; of one that a signal ended, 128 and its number, as in a shell."""
        status = self._process.wait()
        for said in self.said:  # what it said last comes before its status
            said.thread.join(1.0)  # a child of its own may keep them open
        return 128 - status if status < 0 else status

    def kill(self) -> None:
        """End it and what it started; its input stays open until it is gone."""
        for kind, patience_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, None)):
            try:
                os.killpg(self._process.pid, kind)
            except (ProcessLookupError, PermissionError):
                pass  # the latter: it runs as somebody else, and its input stays open
            try:
                self._process.wait(patience_s)
                break
            except subprocess.TimeoutExpired:
                pass
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            keeper, self._keeper = self._keeper, None
        if keeper is not None:
            os.write(keeper[0], _LET_GO)
            os.close(keeper[0])
            os.waitpid(keeper[1], 0)


def _start_keeper(pid: int, input_fd: int) -> Tuple[int, int]:
    """A process that also holds the command's input open; write _LET_GO to have it let go.

    Were there only this process, its own death would look like the end of the stream.
    """
    read_fd, write_fd = os.pipe()
    keeper_pid = os.fork()
    if keeper_pid:
        os.close(read_fd)
        return write_fd, keeper_pid
    try:
        os.setsid()
        kept = sorted((read_fd, input_fd))
        for low, high in zip([0, kept[0] + 1, kept[1] + 1], [*kept, 65536]):
            os.closerange(low, high)
        if os.read(read_fd, 1) != _LET_GO:
            _end_group(pid)
    finally:
        os._exit(0)


def _end_group(pid: int) -> None:
    """End the command and what it started, from a process that is not its parent."""
    for kind, patience_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, _KILL_S)):
        until_s = time.monotonic() + patience_s
        try:
            os.killpg(pid, kind)
            while time.monotonic() < until_s:
                os.killpg(pid, 0)
                time.sleep(_POLL_S)
        except ProcessLookupError:
            return
        except PermissionError:  # it runs as somebody else: its input stays open
            signal.pause()


class FromFile:
    """A file that is the stream's source."""

    def __init__(self, path: str) -> None:
        self.said: List[Said] = []
        self.fd = os.open(os.path.expanduser(to_bytes(path)), files.READ_FLAGS)
        if stat.S_ISDIR(os.fstat(self.fd).st_mode):
            os.close(self.fd)
            raise failures.Refusal(failures.DESTINATION, path, "is a folder, not a file")

    def wait(self) -> int:
        return 0

    def kill(self) -> None:
        pass

    def close(self) -> None:
        os.close(self.fd)


class ToFile:
    """A file that the stream becomes: written beside its place, synced, then renamed."""

    def __init__(self, path: str, umask: int) -> None:
        self.said: List[Said] = []
        full = os.path.realpath(os.path.expanduser(to_bytes(path)))
        if path.endswith("/") or os.path.isdir(full):
            raise failures.Refusal(failures.DESTINATION, path, "is a folder: name a file in it")
        folder, self._name = os.path.split(full)
        self._folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            status = os.stat(self._name, dir_fd=self._folder_fd)
            if not stat.S_ISREG(status.st_mode):
                message = "is a special file at the destination"
                raise failures.Refusal(failures.DESTINATION, path, message)
            self._mode = status.st_mode & 0o777
        except FileNotFoundError:
            self._mode = 0o666 & ~umask
        self._part = part_name(self._name, os.urandom(4).hex())
        flags = files.PART_FLAGS | os.O_EXCL
        self.fd = os.open(self._part, flags, 0o600, dir_fd=self._folder_fd)
        self._ended = threading.Event()
        self._status = 1

    def wait(self) -> int:
        self._ended.wait()
        return self._status

    def close_input(self) -> None:
        """All of it was written. Raises OSError."""
        try:
            os.fchmod(self.fd, self._mode)
            os.fsync(self.fd)
            fd = self._folder_fd
            os.rename(self._part, self._name, src_dir_fd=fd, dst_dir_fd=fd)
            self._status = 0
            os.fsync(fd)
        finally:
            self.kill()

    def kill(self) -> None:
        """What was written so far is of no use."""
        if self._status:
            try:
                os.unlink(self._part, dir_fd=self._folder_fd)
            except FileNotFoundError:
                pass
        self._ended.set()

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._folder_fd)

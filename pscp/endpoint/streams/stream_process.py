"""The program at the far end of a stream: a command, or a file that is read or written.

A command sees the end of its input only after close_input(); in any other case it is ended first,
while its input is still open. A file gets its name only in close_input().

Not here: the stream (stream.py), its lanes (stream_server.py).
"""

import contextlib
import math
import os
import select
import signal
import stat
import subprocess
import threading
import time
from typing import IO, Callable, List

from ..asking import requests
from ..frames import failures, system
from ..reading import files
from ..reading.paths import part_name, to_bytes

TERM_S = 5.0  # from SIGTERM to SIGKILL
_KILL_S = 60.0  # after SIGKILL; then the process hangs in the kernel
_POLL_S = 0.02
_SILENT_S = 1.0
_OUTPUT_BYTES = 64 * 1024  # of a command's output, kept until the coordinator has them
_LET_GO = b"."


class CommandOutput:
    """Reads a command's output, and keeps it until the coordinator has it."""

    def __init__(self, file: "IO[bytes]", notify: Callable[[], None]) -> None:
        """`notify` is called when there is more."""
        self._file, self._notify = file, notify
        self._poll = select.poll()
        self._poll.register(file, select.POLLIN)
        self._changed = threading.Condition()  # whoever holds its lock owns what follows
        self._text = b""
        self._gone = 0  # bytes before `_text`: the coordinator has them
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def after(self, count_bytes: int) -> bytes:
        """Return what came after the first `count_bytes`, and forget those."""
        with self._changed:
            self._text = self._text[max(count_bytes - self._gone, 0) :]
            self._gone = max(self._gone, count_bytes)
            self._changed.notify_all()
            return self._text

    def wait(self) -> None:
        """Wait until the output has ended and the coordinator has all of it.

        A child of the command may keep it open, but write nothing: that does not count.
        """
        while self._thread.is_alive():
            self._thread.join(_SILENT_S)
            with self._changed:
                if not (self._text or self._poll.poll(0)):
                    return

    def close(self) -> None:
        """Read no more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        with self._file:
            while not self._is_closed:
                data = os.read(self._file.fileno(), 4096)
                if not data:
                    return
                with self._changed:
                    while len(self._text) >= _OUTPUT_BYTES and not self._is_closed:
                        self._changed.wait()
                    self._text += data
                self._notify()


class Program:
    """Whatever reads or writes the stream at the far end."""

    fd: int  # the descriptor that the stream is written to, or read from
    outputs: "List[CommandOutput]" = []  # (output, errors) of a command that reads, else (errors,)

    def close_input(self) -> None:
        """Let it see the end of its input: all was written. Raises OSError."""

    def close(self) -> None:
        """Close `fd`, which nobody writes or reads any more."""
        os.close(self.fd)

    def wait(self) -> int:
        """Wait for its end; return its exit status."""
        return 0

    def kill(self) -> None:
        """End it, and only then let it see the end of its input."""


class Command(Program):
    """A program at this end. The stream is its standard input (sink) or output (source)."""

    def __init__(
        self,
        argv: requests.Words,
        is_sink: bool,
        notify: Callable[[], None],
        tidy: Callable[[], None],
    ) -> None:
        """Start the command. Raises Refusal where that is not possible.

        Args:
            argv: a list, executed as it is, or a text for the user's shell.
            is_sink: whether the command reads the stream, else writes it.
            notify: called when the command has written output.
            tidy: called in the Keeper, where this process is killed.
        """
        if isinstance(argv, str):
            argv = [os.environ.get("SHELL") or "/bin/sh", "-c", argv]
        read_fd, write_fd = os.pipe()
        self.fd, its_fd = (write_fd, read_fd) if is_sink else (read_fd, write_fd)
        system.widen_pipe(self.fd)
        try:
            self._process = subprocess.Popen(
                [to_bytes(word) for word in argv],
                stdin=its_fd if is_sink else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_sink else its_fd,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL in the command
            os.close(self.fd)
            reason = getattr(error, "strerror", None) or str(error)
            number = getattr(error, "errno", 0)
            raise failures.Refusal(failures.DESTINATION, str(argv[0]), reason, number)
        finally:
            os.close(its_fd)
        pipes = (self._process.stdout, self._process.stderr)
        self.outputs = [CommandOutput(pipe, notify) for pipe in pipes if pipe]
        self._tidy = tidy
        self._keeper = Keeper(self.fd, self._orphaned) if is_sink else None

    def close_input(self) -> None:
        """Let the command see the end of its input, once close() was called as well."""
        self._let_go()

    def wait(self) -> int:
        """Wait for the exit status; as in a shell it is 128 + N where the signal N ended it."""
        status = self._process.wait()
        for output in self.outputs:  # the coordinator gets all output before the status
            output.wait()
        return 128 - status if status < 0 else status

    def kill(self) -> None:
        """End the command and all that it started; its input stays open until those are gone."""
        _end_group(self._process.pid, self._process.poll)
        self._process.wait()
        self._let_go()

    def _orphaned(self) -> None:
        _end_group(self._process.pid, lambda: None)
        self._tidy()

    def _let_go(self) -> None:
        if self._keeper is not None:
            self._keeper.let_go()


class Keeper:
    """A process that also holds a descriptor open, and acts if this one dies before let_go().

    Else the death of this process would look like the end of the stream to the command, and nobody
    would remove what this process leaves.
    """

    def __init__(self, kept_fd: int, orphaned: Callable[[], None]) -> None:
        """`orphaned` is called in the new process when this one has died."""
        read_fd, self._fd = os.pipe()
        self._lock = threading.Lock()
        self._pid = os.fork()  # 0 after let_go(); used with the lock held
        if self._pid:
            os.close(read_fd)
            return
        try:
            os.setsid()
            low, high = sorted((read_fd, kept_fd))
            os.closerange(0, low)
            os.closerange(low + 1, high)
            os.closerange(high + 1, 65536)
            if os.read(read_fd, 1) != _LET_GO:
                orphaned()
        finally:
            os._exit(0)

    def let_go(self) -> None:
        """End the process; a second call does nothing."""
        with self._lock:
            pid, self._pid = self._pid, 0
        if pid:
            with contextlib.suppress(BrokenPipeError):  # the process was killed
                os.write(self._fd, _LET_GO)
            os.close(self._fd)
            os.waitpid(pid, 0)


def _end_group(pid: int, reap: Callable[[], object]) -> None:
    """End a process group, by SIGTERM and later by SIGKILL; `reap` waits for its leader."""
    try:
        for kind, patience_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, _KILL_S)):
            is_ours = _signal_group(pid, kind)  # another user's has to end by itself
            until_s = time.monotonic() + (patience_s if is_ours else math.inf)
            while time.monotonic() < until_s:
                reap()
                _signal_group(pid, 0)
                time.sleep(_POLL_S)
    except ProcessLookupError:
        pass


def _signal_group(pid: int, kind: int) -> bool:
    """Send a process group a signal; False where we may not. Raises ProcessLookupError."""
    try:
        os.killpg(pid, kind)
        return True
    except PermissionError:
        return False


class FromFile(Program):
    """A file that is the stream's source."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(os.path.expanduser(to_bytes(path)), files.READ_FLAGS)
        mode = os.fstat(self.fd).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISFIFO(mode):
            os.close(self.fd)
            kind = "folder" if stat.S_ISDIR(mode) else "FIFO"
            raise failures.Refusal(failures.DESTINATION, path, "is a %s, not a file" % kind)


class ToFile(Program):
    """A file that the stream is written to: as a part, which is synced and then renamed."""

    def __init__(self, path: str, umask: int, tidy: Callable[[], None]) -> None:
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
        flags = files.PART_FLAGS | os.O_CREAT | os.O_EXCL
        self.fd = os.open(self._part, flags, 0o600, dir_fd=self._folder_fd)
        self._made = os.fstat(self.fd)
        self._has_inode = self._is_named(self._part)  # else the file system changes its numbers
        self._ended = threading.Event()  # set when `_status` is final
        self._status = 1  # only the thread that writes the stream changes it
        self._lock = threading.Lock()  # held to set `_ended`: the folder is closed only then
        self._tidy = tidy
        self._keeper = Keeper(self._folder_fd, self._orphaned)

    def wait(self) -> int:
        self._ended.wait()
        return self._status

    def close_input(self) -> None:
        """Give the part, which is complete, the file's name. Raises OSError."""
        try:
            os.fchmod(self.fd, self._mode)
            os.fsync(self.fd)
            fd = self._folder_fd
            self._check_named(self._part)
            os.rename(self._part, self._name, src_dir_fd=fd, dst_dir_fd=fd)
            self._check_named(self._name)
            self._status = 0
            os.fsync(fd)
        finally:
            self.kill()

    def _check_named(self, name: bytes) -> None:
        """Raise OSError where another file has got this name: others may write to the folder."""
        if self._has_inode and not self._is_named(name):
            raise OSError("another file has been put in the place of its part")

    def _is_named(self, name: bytes) -> bool:
        status = os.stat(name, dir_fd=self._folder_fd, follow_symlinks=False)
        return os.path.samestat(status, self._made)

    def kill(self) -> None:
        """Remove the part, unless it was renamed to the file; a second call does nothing."""
        with self._lock:
            if self._status and not self._ended.is_set():
                self._drop()
            self._ended.set()

    def _drop(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not self._has_inode or self._is_named(self._part):
                os.unlink(self._part, dir_fd=self._folder_fd)

    def _orphaned(self) -> None:
        self._drop()
        self._tidy()

    def close(self) -> None:
        self.kill()
        self._keeper.let_go()
        os.close(self.fd)
        os.close(self._folder_fd)

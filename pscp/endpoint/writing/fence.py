"""The fence of a copy: a file at the destination that says which run of the copy may change it.

`.TOKEN.pscp-run` lies in the destination's root from a run's claim until the copy is complete. It
names the run that owns the copy, the lanes of it that were lost, and the runs before it, which may
have left parts. Whoever gives a file its name, or changes one that has it, holds a shared flock(2)
on the fence meanwhile, and checks first that its run owns the copy and its lane is not lost
(Fence.held). A later run takes the copy over under an exclusive lock (claim). So what an earlier
run, or a lost lane, still has on its way changes nothing, however late it comes.

The fence lies in a private folder in /tmp where the root takes no such file, or has no locks.

Not here: the lock on a part (parts.py), the requests to claim a copy
(../../transfer/negotiation.py).
"""

import contextlib
import errno
import fcntl
import json
import os
import signal
import stat
import threading
import time
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Optional, Tuple, TypeVar, Union

from ..frames import system
from ..frames.failures import DESTINATION, SUPERSEDED, Refusal
from ..reading import files
from ..reading.paths import FOLDER_FLAGS, status_of, unlink_in

FENCE_SUFFIX = b".pscp-run"
# A holder needs microseconds. One that keeps the lock for so long is stopped, or its disk is.
PATIENCE_S = 5.0
# A bit of the fence's mode, set while somebody waits for the exclusive lock: lanes that hold the
# fence in turn without a gap then leave one.
_WANTED, _GAP_S = 0o100, 0.1
EARLIER_MOST = 64  # runs that left parts; the parts of older ones are found by --clean
_CONTENT_BYTES = 1 << 20
# Numbers for the lanes of a task, the last one of them, and numbers for a try of it (tries.py).
TASK, LAST, TRY = 1 << 20, (1 << 20) - 1, 1 << 10

T = TypeVar("T")

if TYPE_CHECKING:
    from typing import NotRequired, TypedDict

    class State(TypedDict):
        """The contents of a fence."""

        run: str  # the run that owns the copy; "" where none does
        lost: List[int]  # lanes of that run
        earlier: List[str]  # runs that may have left parts

    class Claim(TypedDict):
        """The answer to a claim."""

        held: str  # the run that owns the copy and is not known; "" where the copy was claimed
        earlier: List[str]  # runs that may have left parts
        server: NotRequired[Dict[str, object]]  # what was found out about an SFTP server

else:
    State = Claim = Dict[str, object]


def fence_name(token: str) -> bytes:
    return b"." + token.encode("ascii") + FENCE_SUFFIX


def lock(fd: int, kind: int, patience_s: float) -> bool:
    """Lock the file (LOCK_SH, LOCK_EX); False where others hold it for longer than `patience_s`.

    Raises OSError where the filesystem has no locks.
    """
    pause_s, until_s = 0.0005, time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)


def is_named(fd: int, folder_fd: int, name: bytes) -> bool:
    """Is the open file the one that has this name in the folder?"""
    found = status_of(folder_fd, name)
    return found is not None and os.path.samestat(os.fstat(fd), found)


@contextlib.contextmanager
def keeping_times(folder_fd: int) -> Iterator[None]:
    """Set the folder's times back afterwards, where they are ours to set.

    A copy that finds everything there already should leave no trace; and one that sets the times of
    a folder removes its fence after that.
    """
    before = os.fstat(folder_fd)
    yield
    with contextlib.suppress(OSError):
        os.utime(folder_fd, ns=(before.st_atime_ns, before.st_mtime_ns))


class _Place:
    """A folder where the fence may lie."""

    def __init__(self, fd: int, token: str) -> None:
        self.folder_fd, self.name = fd, fence_name(token)

    def open(self, make: bool) -> int:
        """Open the fence. Raises OSError where there is none that is ours and can be locked."""
        is_new = False
        try:
            fd = os.open(self.name, files.PART_FLAGS, dir_fd=self.folder_fd)
        except FileNotFoundError:
            if not make:
                raise
            is_new = True
            with keeping_times(self.folder_fd):
                flags = files.PART_FLAGS | os.O_CREAT | os.O_EXCL
                fd = os.open(self.name, flags, 0o600, dir_fd=self.folder_fd)
        try:
            _check_usable(fd)
            return fd
        except BaseException:
            os.close(fd)
            if is_new:
                self.remove()
            raise

    def open_locked(self, make: bool) -> int:
        """Open the fence and lock it exclusively. Raises as open(), and Refusal where a process
        that holds it cannot be ended.
        """
        while True:
            fd = self.open(make)
            try:
                _lock_out(fd)
                if is_named(fd, self.folder_fd, self.name):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # the process that held it has removed it

    def remove(self) -> None:
        with contextlib.suppress(OSError), keeping_times(self.folder_fd):
            os.unlink(self.name, dir_fd=self.folder_fd)


def _check_usable(fd: int) -> None:
    """Raise OSError for a file of another user (root's is, on some NFS), or without locks."""
    status = os.fstat(fd)
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if not is_ours or status.st_nlink > 1:  # with two names it may be any file of ours
        raise system.os_error(errno.EACCES)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)


def _lock_out(fd: int) -> None:
    """Take the exclusive lock; kill a process that never lets go of the fence."""
    if not lock(fd, fcntl.LOCK_EX, 0.0):
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o600 | _WANTED)
        _wait_out(fd)
    if os.fstat(fd).st_mode & _WANTED:
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o600)


def _wait_out(fd: int) -> None:
    if lock(fd, fcntl.LOCK_EX, PATIENCE_S):
        return
    holders = system.holders(fd)
    for pid in holders:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    if not lock(fd, fcntl.LOCK_EX, PATIENCE_S):
        who = " (process %s)" % ", ".join(map(str, holders)) if holders else ""
        message = "an earlier run of this copy still holds it%s; end it first" % who
        raise Refusal(DESTINATION, "", message)


def private_folder(make: bool) -> int:
    """Open a folder in /tmp that is this user's alone. Raises OSError."""
    path = "/tmp/pscp-%d" % os.geteuid()  # noqa: S108 - looked at below
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    fd = os.open(path, FOLDER_FLAGS)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(fd)
        raise system.os_error(errno.EACCES)
    return fd


@contextlib.contextmanager
def _places(root_fd: int, token: str) -> Iterator[List[_Place]]:
    """Yield the places where the fence may lie, the best first."""
    with contextlib.ExitStack() as stack:
        places = [_Place(root_fd, token)]
        with contextlib.suppress(OSError):
            places.append(_Place(private_folder(False), token))
            stack.callback(os.close, places[1].folder_fd)
        yield places


def _read(fd: int) -> State:
    return state_of(os.pread(fd, _CONTENT_BYTES, 0))


def state_of(content: bytes) -> State:
    """Return the state in a fence's content; where there is none, that nobody owns the copy."""
    try:
        value = json.loads(content.decode("ascii"))
        run, lost, earlier = value["run"], value["lost"], value["earlier"]
        return {"run": str(run), "lost": [*map(int, lost)], "earlier": [*map(str, earlier)]}
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return {"run": "", "lost": [], "earlier": []}


def _write(fd: int, state: State) -> None:
    # At once, in blanks where it was longer: a lane that begins may read it meanwhile.
    content = json.dumps(state).ljust(os.fstat(fd).st_size).encode("ascii")
    if os.pwrite(fd, content, 0) != len(content):
        raise system.os_error(errno.ENOSPC)


def claim(root_fd: int, token: str, nonce: str, known: List[str]) -> Claim:
    """Make `nonce` the run that owns the copy, unless a run owns it that is not in `known`.

    So a claim that comes late does not take the copy over from a run that began after it. Raises
    OSError, and Refusal where a process that holds the fence cannot be ended.
    """
    try:
        return _claim_in(False, root_fd, token, nonce, known)
    except OSError as error:
        problem = error
    try:
        return _claim_in(True, root_fd, token, nonce, known)
    except OSError:
        raise problem


def decide(states: List[State], nonce: str, known: List[str]) -> Tuple[Claim, Optional[State]]:
    """Return the answer to a run that claims the copy while fences have these states, and the
    fence's new state; None where it keeps its own.
    """
    owners = [state["run"] for state in states if state["run"] not in ("", nonce)]
    earlier = [run for state in states for run in state["earlier"]] + owners
    if not any(state["run"] for state in states):  # the fence was lost, if there was one
        earlier += known
    for owner in owners:
        if owner not in known:
            return {"held": owner, "earlier": earlier}, None
    earlier = sorted(set(earlier), key=earlier.index)[-EARLIER_MOST:]
    answer: Claim = {"held": "", "earlier": earlier}
    return answer, {"run": nonce, "lost": [], "earlier": earlier}


def _claim_in(private: bool, root_fd: int, token: str, nonce: str, known: List[str]) -> Claim:
    """Claim the copy with a fence in the root, or in the private folder. Raises OSError.

    Both are locked, in one order, before either is written. So of two runs that claim at the same
    time the second one finds the first, and no fence is written while another process holds it.
    """
    fences: Dict[bool, Tuple[_Place, int, State]] = {}  # by whether it is in the private folder
    with contextlib.ExitStack() as stack:
        for is_private in (False, True):
            try:
                folder_fd = private_folder(private) if is_private else root_fd
                if is_private:
                    stack.callback(os.close, folder_fd)
                place = _Place(folder_fd, token)
                fd = place.open_locked(is_private is private)
            except OSError:
                if is_private is private:
                    raise
                continue
            stack.callback(os.close, fd)
            fences[is_private] = place, fd, _read(fd)
        answer, state = decide([before for _, _, before in fences.values()], nonce, known)
        place, fd, before = fences.pop(private)
        if state is None:
            if not before["run"]:
                place.remove()
            return answer
        _write(fd, state)
        for other, _, _ in fences.values():
            other.remove()
        return answer


def release(root_fd: int, token: str, nonce: str) -> None:
    """Remove the fence of a complete copy, if it is still this run's. Raises OSError."""
    with _places(root_fd, token) as places:
        for place in places:
            try:
                fd = place.open_locked(False)
            except OSError:  # it is in the other place
                continue
            with system.closing(fd):
                if _read(fd)["run"] == nonce:
                    unlink_in(place.folder_fd, b".", place.name)


def revoke(root_fd: int, token: str, nonce: str, lane: int) -> None:
    """Note in the fence that a lane of this run is lost, so that it may change nothing any more.
    The last one of a task stands for all tasks up to that. Raises as change().
    """

    def note(state: State) -> None:
        if lane % TASK == LAST:  # in the place of theirs
            state["lost"] = [each for each in state["lost"] if not TASK <= each < lane]
        state["lost"].append(lane)

    change(root_fd, token, nonce, note)


def change(root_fd: int, token: str, nonce: str, act: "Callable[[State], T]") -> "T":
    """Have `act` change the state in this run's fence, and return its result.

    Raises Refusal where the run does not own the copy, OSError where the fence cannot be read.
    """
    problem: Exception = superseded()
    with _places(root_fd, token) as places:
        for place in places:
            try:
                fd = place.open_locked(False)
            except FileNotFoundError:
                continue
            except OSError as error:  # the fence may be in the other place
                problem = error
                continue
            with system.closing(fd):
                state = _read(fd)
                if state["run"] == nonce:
                    result = act(state)
                    _write(fd, state)
                    return result
    raise problem


def superseded() -> Refusal:
    return Refusal(SUPERSEDED, "", "another run of this copy has taken over at the destination")


class NoFenceLeft(Refusal):
    """Raised where no run owns the copy any more: it is complete."""


class NoFence:
    """Takes the fence's place in a dry run, and where no run owns the copy any more (is_lost)."""

    def __init__(self, is_lost: bool = False) -> None:
        self._is_lost = is_lost

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Do nothing in a dry run. Raises Refusal where the fence is lost."""
        if self._is_lost:
            raise superseded()
        yield

    def close(self) -> None:
        pass


class Fence:
    """One lane's view of the fence. Any thread of the lane may hold it."""

    def __init__(self, root_fd: int, token: str, nonce: str, lane: int) -> None:
        """Raises Refusal where the run does not own the copy any more, or the lane is lost."""
        self._run, self._lane = nonce, lane
        self._lock = threading.Lock()  # guards what follows
        self._holders = 0
        self._good = b""  # content under which this lane may go on
        self._fd, self._place = self._find(root_fd, token)
        self._keeps_modes = not os.fstat(self._fd).st_mode & 0o077  # vfat and the like do not

    def _find(self, root_fd: int, token: str) -> Tuple[int, _Place]:
        is_taken = False
        with _places(root_fd, token) as places:
            for place in places:
                try:
                    fd = place.open(False)
                except OSError:
                    continue
                if _read(fd)["run"] == self._run:
                    place.folder_fd = os.dup(place.folder_fd)
                    return fd, place
                is_taken = True
                os.close(fd)
        if is_taken:
            raise superseded()
        raise NoFenceLeft(SUPERSEDED, "", "this copy has let go of the destination")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs from taking the copy over meanwhile. Raises Refusal once one has."""
        with self._lock:
            if not self._holders:
                self._take()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _take(self) -> None:
        status = os.fstat(self._fd)
        is_wanted = self._keeps_modes and status.st_mode & _WANTED
        if is_wanted and time.time() - status.st_ctime < 2 * PATIENCE_S:
            time.sleep(_GAP_S)
        # A claim that has the exclusive lock may wait 2 * PATIENCE_S for that of the other place.
        if not lock(self._fd, fcntl.LOCK_SH, 4 * PATIENCE_S):
            raise Refusal(DESTINATION, "", "another run of this copy holds the destination")
        if not self._is_ours():
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            raise superseded()

    def _is_ours(self) -> bool:
        if not is_named(self._fd, self._place.folder_fd, self._place.name):
            return False
        content = os.pread(self._fd, _CONTENT_BYTES, 0)
        if content != self._good:
            state = state_of(content)
            own = {self._lane, self._lane & -TRY, self._lane & -TASK}
            over = [each for each in state["lost"] if each % TASK == LAST]
            is_lost = TASK <= self._lane < max(over, default=0) or own & {*state["lost"]}
            if is_lost or state["run"] != self._run:
                return False
            self._good = content
        return True

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._place.folder_fd)


AnyFence = Union[Fence, NoFence]

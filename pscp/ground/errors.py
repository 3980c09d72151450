"""Every error that pscp raises on purpose, and the exit code of each.

    PscpError
    +-- UsageError 2
    |   +-- UnknownOption (a TypeError, too), BadManifest
    +-- CopyError 1
    |   +-- DestinationError, CopyRunning, CommandFailed, TimedOut, FilesFailed, FanOutFailed
    +-- ItemError 1
    |   +-- FileError
    |   |   +-- SourceChanged, NotRemoved, UnsupportedFile, UnsafeName, VerifyError, SystemFailure
    |   +-- DatasetError
    |       +-- NoSuchDataset, NoSnapshot, SnapshotExists, NoCommonSnapshot, Diverged
    |       +-- DestinationExists, DatasetBusy, NoSpace, StreamRejected, StreamCut
    |       +-- ResumeRefused, ZfsDenied
    +-- NoZfs 1
    +-- ConnectError 3
    |   +-- Unreachable, AuthenticationError, HostKeyError, NoPython, NoAgent, AgentFailed
    |   +-- ConnectionFull, NoSftp, ConnectionLost
    +-- ProtocolError 4, Cancelled 1, Interrupted 130, Terminated 143

A class's docstring is its message in docs/errors.md; `exit_code`, `retry` and `hint` are its
facts. An exception of any other class is a bug of ours and is shown as a traceback.

Not here: the decision what to do about an error (../transfer/coordinator.py) and its printing
(../cli/copy.py).
Read next: ../options/options.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pscp.calls.deliveries import Delivery
    from pscp.progress.progress import Result

RETRY_FOR = "; --retry-for 30m keeps trying to connect for so long"
# The hint of what the system has too few of.
NO_MORE = "ulimit -u, or a container's limits, bound processes and threads, and ulimit -v memory"
USING_SFTP = ": using SFTP"  # the end of the note that there is no agent
RUN_AGAIN = "run the same command again to go on from here"


class PscpError(Exception):
    """Something that pscp cannot do, described for people."""

    exit_code = 1
    retry = False  # may the same thing work later, with nothing changed by anybody?
    hint = ""  # what the user can do about it

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint

    def __reduce__(self) -> tuple[Callable[..., PscpError], tuple[Any, ...]]:
        """Have pickle and copy take all of it, whatever its class is made with."""
        return _made_again, (type(self), self.args, vars(self))

    @property
    def message(self) -> str:
        return str(self.args[0])

    @property
    def text(self) -> str:
        """The message, and the hint on a line below it, if there is one."""
        return "\n".join(filter(None, (self.message, self.hint)))


def as_dict(error: BaseException | None) -> dict[str, object]:
    """Return what json.dumps() takes of an error: its kind, and its words for people."""
    return {
        "error": type(error).__name__ if error is not None else None,
        "message": error.message if isinstance(error, PscpError) else "",
        "hint": error.hint if isinstance(error, PscpError) else "",
    }


def _made_again(
    kind: type[PscpError], args: tuple[object, ...], facts: dict[str, object]
) -> PscpError:
    error = kind.__new__(kind, *args)
    vars(error).update(facts)
    return error


class UsageError(PscpError):
    """The command line, or the arguments of a call, make no sense. Nothing was contacted."""

    exit_code = 2


class UnknownOption(UsageError, TypeError):
    """A keyword of a call is none of its own, and of no option."""


class BadManifest(UsageError):
    """A manifest is malformed, or its signature is not right. Nothing else was read."""

    hint = "docs/manifests.md has the format"


class CopyError(PscpError):
    """The copy as a whole cannot go on."""


class FilesFailed(CopyError):
    """Files were not copied; `result` says which, and what was."""

    def __init__(self, message: str, hint: str = "", *, result: Result) -> None:
        super().__init__(message, hint)
        self.result = result
        self.retry = any(each.retry for each in result.failures)


class FanOutFailed(CopyError):
    """Destinations of a fan-out have not got every file; `result` has what became of each."""

    def __init__(self, message: str, hint: str = "", *, result: Sequence[Delivery]) -> None:
        super().__init__(message, hint)
        self.result = tuple(result)
        self.exit_code = max(each.exit_code for each in result)
        self.retry = all(each.problem.retry for each in result if each.problem is not None)


class DestinationError(CopyError):
    """The destination cannot take these sources."""


class CopyRunning(CopyError):
    """The same copy is already running."""

    retry = True
    hint = "wait for it, or end it; then run this command again"


class CommandFailed(CopyError):
    """The command at the other end of a stream ended with another exit status than 0; `err` has
    the end of its standard error.
    """

    hint = "`err` has the end of what it said"

    def __init__(self, message: str, status: int, hint: str = "", *, err: bytes = b"") -> None:
        super().__init__(message, hint)
        if not (hint or err):
            self.hint = ""
        self.status = status  # 128 and the number of the signal that ended it
        self.err = err  # the last 64 KiB; after pipe_to() its standard output as well


class TimedOut(CopyError):
    """A command was not over in time, and was ended; `out` and `err` have what came."""

    hint = "`timeout` of run() is in seconds"
    out = err = b""


class ItemError(PscpError):
    """One of the files or datasets that a command is about was left out; the others were not."""

    def __init__(self, path: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.path = path  # or the dataset's name


class FileError(ItemError):
    """One file was not copied, or a source is missing, at either end. The others were copied."""


class SourceChanged(FileError):
    """The source changed while it was copied, so what arrived was thrown away."""

    retry = True
    hint = "copy it again when nothing writes to it, or copy a snapshot of it"


class NotRemoved(FileError):
    """A file was copied, and is still at the source, which it was to leave."""


class UnsupportedFile(FileError):
    """A dangling link, a special file (device, socket, FIFO), or a loop of links."""

    hint = "leave it out with --exclude, or keep links as links with -a"


class UnsafeName(FileError):
    """A name that could lead outside the destination, or that no file can have."""


class VerifyError(FileError):
    """A file landed damaged, twice; it was thrown away."""

    hint = "this points to faulty memory, disk or network hardware"


class SystemFailure(FileError):
    """The operating system refused: no permission, no space, a name too long, and so on."""

    def __init__(self, path: str, message: str, errno: int = 0, hint: str = "") -> None:
        super().__init__(path, message, hint)
        self.errno = errno


class ConnectError(PscpError):
    """There is no usable agent at the far end."""

    exit_code = 3


class Unreachable(ConnectError):
    """The host refuses connections, does not resolve, or does not answer in time."""

    retry = True
    hint = "try: ssh HOST true" + RETRY_FOR


class AuthenticationError(ConnectError):
    """The far end refused the login."""

    hint = "try: ssh HOST true"


class HostKeyError(ConnectError):
    """The host's key is unknown, or not the one on record."""

    hint = (
        "compare the key with the host's owner, then have it recorded: "
        "ssh HOST -o StrictHostKeyChecking=ask true"
    )


class NoPython(ConnectError):
    """The far end has no python3, or one older than 3.6."""

    hint = "install python3 (3.6 or later) on that host; nothing else is needed there"


class NoAgent(ConnectError):
    """The far end ran something else than the agent: a forced command, a login message."""

    hint = (
        "try: ssh HOST 'python3 --version'; if a forced command answers there, "
        "docs/security.md has those that let pscp in"
    )


class AgentFailed(ConnectError):
    """The agent ended as it began: python3 is broken there, or short of memory."""

    retry = True
    hint = "try again" + RETRY_FOR + "; --remote sftp needs no python3"


class ConnectionFull(ConnectError):
    """The server lets no more channels on this connection (sshd's MaxSessions)."""

    hint = "fewer channels (--channels), or a larger MaxSessions in the server's sshd_config"


class NoSftp(ConnectError):
    """The far end offers no SFTP, which --remote sftp asks for."""

    hint = "try: sftp HOST"


class ConnectionLost(ConnectError):
    """The connection closed, or carried nothing for a minute."""

    retry = True
    hint = "try again" + RETRY_FOR


class ProtocolError(PscpError):
    """The far end sent what the protocol does not allow there."""

    exit_code = 4


class Cancelled(PscpError):
    """Ended by the program: Session.cancel() or close(), or the cancel() of an asyncio task."""

    hint = "what had landed is kept; the same call goes on from here"


class Interrupted(PscpError):
    """Ended by SIGINT (Ctrl-C). What had landed is kept."""

    exit_code = 130
    hint = RUN_AGAIN


class Terminated(PscpError):
    """Ended by SIGTERM, or by SIGHUP. What had landed is kept."""

    exit_code = 143
    hint = RUN_AGAIN


class DatasetError(ItemError):
    """One ZFS dataset was not replicated. The others were, but for those below it."""


class NoSuchDataset(DatasetError):
    """The dataset, or the parent that it would be received below, is not there."""

    hint = "zfs list shows what is there; zfs create makes a parent"


class NoSnapshot(DatasetError):
    """The dataset has no snapshot that could be sent."""

    hint = "--snapshot-name NAME takes one first"


class SnapshotExists(DatasetError):
    """There is a snapshot of the name that was to be taken."""

    hint = "{time} in the name of --snapshot-name makes each another"


class NoCommonSnapshot(DatasetError):
    """The destination has snapshots, and the source has none of them, nor a bookmark of one."""

    hint = (
        "replicate to another name, or rename the destination out of the way (zfs rename); its own "
        "--snapshot-name, or --bookmark, keeps what the next increment begins with"
    )


class Diverged(DatasetError):
    """The destination was changed after the snapshot that both ends have."""

    hint = (
        "--force-rollback throws those changes away: copy the files out before, or zfs snapshot "
        "DEST@NAME and zfs send DEST@NAME | zfs receive OTHER (a clone would be in the way); zfs "
        "set readonly=on DEST keeps it from happening again"
    )


class DestinationExists(DatasetError):
    """The destination is there already, and has no snapshot to go on from."""

    hint = "replicate to a name below it; --force-rollback overwrites what it holds"


class DatasetBusy(DatasetError):
    """Another replication, a program or a hold has the dataset in use."""

    retry = True
    hint = "wait for what uses it, or end that; then run this command again"


class NoSpace(DatasetError):
    """The destination's pool is full, or a quota is reached."""

    hint = "make room (zfs list -o space), or raise the quota; then run this command again"


class StreamRejected(DatasetError):
    """zfs would not make this stream, or not receive it."""

    hint = "zfs's own words above say why; --dry-run shows the exact commands"


class StreamCut(DatasetError):
    """zfs send or zfs receive ended before the stream did."""

    retry = True
    hint = "run the same command again: where both ends can resume, it goes on from there"


class ResumeRefused(DatasetError):
    """The destination holds a cut receive that cannot be gone on with from this source."""

    hint = "zfs receive -A DATASET at the destination throws the cut receive away"


class ZfsDenied(DatasetError):
    """The user may not do this with ZFS."""

    hint = (
        "delegate it: zfs allow USER send,snapshot,hold,release,destroy,mount,userprop SOURCE, and "
        "zfs allow USER receive,create,mount,rollback,userprop,destroy,readonly at the parent of "
        "DEST; or --zfs-command 'sudo zfs'"
    )


class NoZfs(PscpError):
    """There is no zfs command at this end, or it does not work there."""

    hint = "install ZFS there, or say where it is: --zfs-command, --far-zfs-command"

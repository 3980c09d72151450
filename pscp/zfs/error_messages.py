"""Turns zfs's stderr into one of our errors, with zfs's own words in it.

zfs has no other way to say why it failed: its exit status is 1 for nearly everything.

Not here: what is done about an error (dataset_job.py).
"""

from __future__ import annotations

import re

from pscp.ground import errors
from pscp.stream.stream import Ran
from pscp.zfs.link import PipeStatuses

# In this order: a complaint may name several things, and the first here is the cause.
_MEANINGS: tuple[tuple[str, type[errors.DatasetError]], ...] = (
    (
        r"permission denied|must be run as root|a password is required|may not run sudo"
        r"|not in the sudoers|operation not permitted|insufficient privileges",
        errors.ZfsDenied,
    ),
    (r"no space left|out of space|quota exceeded|exceeds quota", errors.NoSpace),
    (
        r"more recent snapshots? exist|most recent snapshot of .* does not|has been modified"
        r"|does not match incremental source",
        errors.Diverged,
    ),
    (
        r"cannot resume send|used in the initial send no longer exists|no longer the same snapshot"
        r"|resume token is corrupt|partially.complete",
        errors.ResumeRefused,
    ),
    (r"\bbusy\b|already being received", errors.DatasetBusy),
    (r"cannot create snapshot.* already exists", errors.SnapshotExists),
    (
        r"must specify -F to overwrite|destination has snapshots|destination '?\S+'? exists",
        errors.DestinationExists,
    ),
    (r"does not exist|no such pool|no such dataset|invalid dataset", errors.NoSuchDataset),
)

# What the other end's failure leads to: it names no cause.
_CONSEQUENCE = re.compile(
    r"broken pipe|signal received|failed to read from stream|incomplete stream"
    r"|invalid backup stream|invalid stream|unexpected end|i/o error|partially received",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"^(usage:|\t|For the property list|For the delegated|internal error: Success"
    r"|Warning: .* does not apply to datasets of this type)"  # zfs receive -x for a volume
)
_BEGINS = re.compile(r"cannot |warning|[A-Z]|\S+: ")
CLONED = (
    "--force-rollback destroys no clone: zfs send what it holds | zfs receive OTHER, and zfs "
    "destroy it; then run this command again"
)
HERE, THERE = "--zfs-command", "--far-zfs-command"
_MOST = 400  # characters of zfs's words that are shown


def complaint(err: bytes) -> str:
    """Return what zfs wrote on stderr, in one line."""
    lines = err.decode("utf-8", "replace").splitlines()
    words = [line.strip() for line in lines if line.strip() and not _NOISE.match(line)]
    text = words[0] if words else ""
    for more in words[1:]:  # a sentence of its own, or one that zfs has broken
        text += f"; {more}" if _BEGINS.match(more) else f" {more}"
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


def meaning(dataset: str, err: bytes, option: str = HERE) -> errors.DatasetError:
    """Return the error that this stderr of zfs means; `option` says what zfs is at that end."""
    said = complaint(err)
    for pattern, kind in _MEANINGS:
        if re.search(pattern, said, re.IGNORECASE):
            error = kind(dataset, said)
            error.hint = error.hint.replace(HERE, option)
            return error
    hint = CLONED if "clones of previous snapshots exist" in said else ""
    return errors.StreamRejected(dataset, said or "zfs failed and said nothing", hint)


def of_stream(
    source: str, dest: str, piped: PipeStatuses, is_push: bool = True
) -> errors.DatasetError | None:
    """Return why a stream failed; None if it was sent and received whole."""
    ends = (HERE, THERE) if is_push else (THERE, HERE)
    if piped.producer.status == 0 and piped.consumer.status == 0:
        return None
    sides = ((dest, piped.consumer, ends[1]), (source, piped.producer, ends[0]))
    for dataset, ran, option in sides:
        said = complaint(ran.err)
        if ran.status != 0 and said and not _CONSEQUENCE.search(said):
            return meaning(dataset, ran.err, option)
    if piped.producer.status != 0:
        return errors.StreamCut(source, f"zfs send did not finish: {_how(piped.producer)}")
    return errors.StreamCut(dest, f"zfs receive did not finish: {_how(piped.consumer)}")


def is_unmounted_alone(piped: PipeStatuses) -> bool:
    """Return whether all was received, and zfs receive failed only to mount it, as zfs-fuse says.

    Whether it is there is looked up before it counts as replicated.
    """
    lines = [line for line in piped.consumer.err.splitlines() if line.strip()]
    fails = [line for line in lines if line.startswith(b"cannot ")]
    return (
        piped.producer.status == 0
        and bool(fails)
        and all(line.startswith(b"cannot mount ") for line in fails)
    )


def _how(ran: Ran) -> str:
    """Return how a program failed; a negative status is a signal, as is one beyond 128."""
    signal = -ran.status if ran.status < 0 else ran.status - 128
    ended = f"ended by signal {signal}" if 0 < signal < 65 else f"exit status {ran.status}"
    return complaint(ran.err) or ended

"""The closing words of a command: what was copied, where to, and what was not; --stats.

Not here: the words while it runs (../progress/progress_words.py), notes of failures
(../transfer/terms/results.py), where they are kept (run_log.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields

from pscp.cli.run_log import RunLog
from pscp.ground.terminal_text import write_line
from pscp.options.options import Options
from pscp.progress.progress import (
    NO_CIPHER,
    Result,
    count,
    count_failed,
    format_bytes,
    format_duration,
    of_worker,
)

_UNCHANGED = "unchanged by size and time"
# Said in lines of their own, or by a number.
_NO_ROWS = ("digests", "failures", "not_deleted", "root", "workers", "datasets", "snapshot")


def conclude(text: str, stats: Iterable[str], options: Options, log: RunLog) -> None:
    """Write the closing line in the log and on stderr, which leaves stdout to what was asked for.

    With --stats the rows of these follow it.
    """
    log.write(text)
    if is_told(options):
        write_line(sys.stderr, text)
    if options.stats:
        for row in stats:
            write_line(sys.stderr, row)


def is_told(options: Options) -> bool:
    """Return whether closing words are shown."""
    return not options.quiet and options.progress not in ("none", "json")


def closing_line(result: Result, options: Options, to: str) -> str:
    if options.check:
        return check_summary(result)
    if options.dry_run:
        is_moved = options.remove_source_files and result.files
        moved = ", no longer at the source once it is there" if is_moved else ""
        return dry_run_summary(result, moved, _unchanged(options))
    if options.transfer_test:
        return f"transfer test: nothing was read or written; {summary(result)}"
    return summary(result, to, _unchanged(options))


def _unchanged(options: Options) -> str:
    """Return what is said of files that were taken for the same without a look into them."""
    return "unchanged by size" if options.size_only else _UNCHANGED


def summary(result: Result, to: str = "", unchanged: str = _UNCHANGED) -> str:
    """Return, for example: 2.4 GB in 12.0 s (200.0 MB/s) to host:b, 12 files, 640 chunks verified.

    So a copy's words follow from its Result, and `to` is where it went.
    """
    going, hashed_s = f" to {to}" if to else "", result.manifest_seconds
    moved_bytes = max(0, result.bytes - result.bytes_resumed)
    rate = format_bytes(moved_bytes / result.seconds if result.seconds > 0 else 0)
    extras = (
        (result.chunks_resent, f"{result.chunks_resent} resent"),
        (result.files_resumed, f"{result.files_resumed} unchanged"),
        (result.files_unchanged, f"{result.files_unchanged} {unchanged}"),
        (result.metadata_set, f"metadata of {result.metadata_set} set"),
        (result.files_linked, f"{result.files_linked} linked"),
        (result.bytes_resumed, f"{format_bytes(result.bytes_resumed)} was there already"),
        (result.files_skipped, f"{result.files_skipped} skipped"),
        (result.files_deleted, f"{result.files_deleted} deleted"),
        (result.files_removed, f"{result.files_removed} removed at the source"),
    )
    told = [text for number, text in extras if number]
    if result.failures and not (told or result.files or moved_bytes):
        return ", ".join([f"nothing was copied{going}", *not_done(result)])
    return ", ".join(
        [
            f"{format_bytes(moved_bytes)} in {format_duration(result.seconds)} ({rate}/s){going}",
            count(result.files, "file"),
            f"{count(result.chunks_verified, 'chunk')} verified"
            if result.verified
            else "not verified",
            *told,
            *not_done(result),
            *([f"hashed for the manifest in {format_duration(hashed_s)}"] if hashed_s else []),
            *([NO_CIPHER] if result.plane == "plain" else []),
        ]
    )


def not_done(result: Result) -> list[str]:
    """Return how many files were left out, and how many failed: "2 left out", "1 failed"."""
    counted = ((result.files_left_out, "left out"), (count_failed(result), "failed"))
    return [f"{number} {what}" for number, what in counted if number]


def dry_run_summary(result: Result, moving: str = "", unchanged: str = _UNCHANGED) -> str:
    missing_bytes = max(0, result.bytes - result.bytes_resumed)
    there = f"{count(result.files, 'file')}, {format_bytes(missing_bytes)}"
    linked = f", and {result.files_linked} linked" if result.files_linked else ""
    linked += f", and metadata of {result.metadata_set} set" if result.metadata_set else ""
    deleted = f", and {result.files_deleted} deleted" if result.files_deleted else ""
    would = f"nothing was copied (dry run); it would have been {there}{linked}{deleted}{moving}"
    left = (
        (result.files_resumed, "unchanged"),
        (result.files_unchanged, unchanged),
        (result.files_skipped, "skipped"),
    )
    told = [f"{number} {what}" for number, what in left if number]
    return ", ".join([would, *told, *not_done(result)])


def check_summary(result: Result) -> str:
    same = result.files_resumed + result.files_unchanged
    compared = f"{count(same, 'file')} the same ({result.files_resumed} hashed)"
    found = f"nothing was copied (check); {result.differing} different, {compared}"
    return ", ".join([found, *not_done(result)])


# Rows of --stats that have the closing line's words.
_ROWS = {
    "files": "files copied",
    "files_resumed": "unchanged",
    "files_linked": "linked",
    "files_skipped": "skipped",
    "files_left_out": "left out",
    "files_deleted": "deleted",
    "files_removed": "removed at the source",
    "differing": "different",
}
# And what they are called where nothing is done.
_WOULD = {
    "files": "would be copied",
    "files_linked": "would be linked",
    "files_deleted": "would be deleted",
    "metadata_set": "metadata would be set",
}


def table(result: Result, options: Options) -> list[str]:
    """Return the rows of --stats."""
    names = {**_ROWS, "files_unchanged": _unchanged(options)}
    names |= _WOULD if options.dry_run or options.check else {}
    counted = {
        names.get(item.name, item.name.replace("_", " ")): getattr(result, item.name)
        for item in fields(result)
        if item.name not in _NO_ROWS
    }
    counted |= {"seconds": f"{result.seconds:.3f}", "failures": count_failed(result)}
    counted["manifest seconds"] = f"{result.manifest_seconds:.3f}"
    counted["verified"] = "yes" if result.verified else "no"
    return rows(counted | {f"worker {each.worker}": of_worker(each) for each in result.workers})


def rows(values: Mapping[str, object]) -> list[str]:
    return [f"{name:<26} {value!s:>16}" for name, value in values.items()]

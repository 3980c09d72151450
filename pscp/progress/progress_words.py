"""A copy's progress in words: where it stands, what is under way, what fits into a line.

Pure: nothing here writes or waits.

Not here: the numbers (../ground/counters.py), who shows the words (progress.py, display.py).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from pscp.ground.counters import Counters, LargeFile, WorkerTotals

STILL_S = 5.0  # after which it is said that nothing arrives
_NAME_MOST = 32  # characters of a name in a line that has more to say
RATE_WINDOW_S = 10.0  # long enough to be steady, short enough to show a lane that died


class Piece(NamedTuple):
    """A piece of a line. Where there is no room the pieces with the highest rank are left out."""

    rank: int
    text: str


class Rate:
    """Computes bytes a second over the last RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def per_s(self, now_s: float, bytes_done: int) -> float:
        """Record how many bytes are done now; return the bytes a second."""
        samples = self._samples
        if not bytes_done:  # the time that logins took says nothing about the rate
            samples.clear()
        samples.append((now_s, bytes_done))
        while len(samples) > 2 and samples[1][0] <= now_s - RATE_WINDOW_S:
            samples.popleft()
        passed_s = now_s - samples[0][0]
        return max(0.0, bytes_done - samples[0][1]) / passed_s if passed_s > 0 else 0.0


def describe(
    now: Counters,
    bytes_per_s: float,
    elapsed_s: float = 0,
    *,
    out_s: float = 0,
    still_s: float = 0,
) -> tuple[list[Piece], list[Piece]]:
    """Return where a copy stands: amount, rate, time left; then files, connections and the rest.

    It has taken `elapsed_s`, had no connection for `out_s`, and nothing arrived for `still_s`. Once
    the files are hashed for its manifest, that is what is told.
    """
    if now.is_hashing:
        return _describe_hashing(now, bytes_per_s, elapsed_s)
    there, expected_bytes = now.bytes_done + now.bytes_resumed, now.bytes_expected
    amount = format_bytes(there)
    about = "" if now.plan_complete or not expected_bytes else "about "
    more = "" if now.plan_complete or expected_bytes else "+"
    first, hashed = [], being_hashed(now)
    left_bytes = expected_bytes - there
    if expected_bytes and not (hashed and left_bytes <= 0):  # a file counts once it is hashed
        first.append(Piece(0, f"{min(100 * there // expected_bytes, 100)}%"))
    if expected_bytes or now.bytes_total:
        amount += f" of {about}{format_bytes(expected_bytes or now.bytes_total)}{more}"
    first += [Piece(3, amount), Piece(1, f"{format_bytes(bytes_per_s)}/s")]
    is_out = now.connections_lost > 0 and now.lanes_alive == 0 and now.left_bytes > 0
    if bytes_per_s >= 1 and left_bytes > 0 and not is_out:
        first.append(Piece(2, f"{format_duration(left_bytes / bytes_per_s)} left"))
    there_already = now.files_resumed + now.files_unchanged + now.files_linked + now.files_skipped
    finished = now.files_done + there_already
    is_still = still_s >= STILL_S and now.lanes_alive > 0 and now.left_bytes > 0
    still = format_duration(round(still_s)).replace(".0", "")  # whole seconds
    lanes = f"{now.lanes_alive} of {count(max(now.lanes_wanted, now.lanes_alive), now.nouns[1])}"
    files_total = now.files_expected or now.files_total
    files = f"{finished} of {about}{count(files_total, now.nouns[0])}" if files_total else ""
    second = [
        Piece(1, files),
        Piece(1, hashed),
        Piece(0, outage(now.attempts, out_s)) if is_out else Piece(4, lanes),
        Piece(0, f"nothing for {still}" if is_still else ""),
        Piece(2, f"{format_duration(elapsed_s)} so far" if elapsed_s else ""),
        Piece(3, f"{format_bytes(now.bytes_resumed)} resumed" if now.bytes_resumed else ""),
        Piece(0, f"{now.files_failed} failed" if now.files_failed else ""),
    ]
    return first, [piece for piece in second if piece.text]


def _describe_hashing(
    now: Counters, bytes_per_s: float, elapsed_s: float
) -> tuple[list[Piece], list[Piece]]:
    """Return the same while a manifest is made: a large file is hashed whole as well as in chunks,
    and nothing is counted until that is over.
    """
    whole_bytes = max(now.bytes_to_hash, now.bytes_hashed)
    amount = f"{format_bytes(now.bytes_hashed)} of {format_bytes(whole_bytes)}"
    left_bytes = whole_bytes - now.bytes_hashed
    is_timed = bytes_per_s >= 1 and left_bytes > 0
    first = [
        Piece(0, f"hashing for the manifest: {amount}"),
        Piece(2, f"{format_bytes(bytes_per_s)}/s" if bytes_per_s >= 1 else ""),
        Piece(1, f"{format_duration(left_bytes / bytes_per_s)} left" if is_timed else ""),
    ]
    second = [
        Piece(1, f"{now.files_hashed} of {count(now.files_to_hash, now.nouns[0])}"),
        Piece(1, being_hashed(now)),
        Piece(2, f"{format_duration(elapsed_s)} so far" if elapsed_s else ""),
        Piece(0, f"{now.files_failed} failed" if now.files_failed else ""),
    ]
    return [piece for piece in first if piece.text], [piece for piece in second if piece.text]


def being_hashed(now: Counters) -> str:
    """Return, for example: hashing scan.raw (5.4 GB) and 2 more; "" where no large file is."""
    hashed = [each for each in now.large.values() if each.is_hashed]
    if not hashed:
        return ""
    first, *more = hashed
    name = first.path.rpartition("/")[2]
    shown = name if len(name) <= _NAME_MOST else f"\u2026{name[1 - _NAME_MOST :]}"
    others = f" and {len(more)} more" if more else ""
    return f"hashing {shown} ({format_bytes(first.size_bytes)}){others}"


def outage(attempts: int, out_s: float) -> str:
    """Return, for example: connection lost, trying again (3rd time, 12 s)."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(attempts % 10 * (attempts // 10 % 10 != 1), "th")
    times = [f"{attempts}{ending} time"] if attempts else []
    seconds = [f"{out_s:.0f} s" if out_s < 60 else format_duration(out_s)] if out_s >= 1 else []
    more = ", ".join(times + seconds)
    return "connection lost, trying again" + (f" ({more})" if more else "")


def lane_rates(per_s: list[float | None], width: int) -> str:
    """Return the rate of each lane, as many as go into a line: "lanes, MB/s: 11.8 12.0 -"."""
    texts = ["-" if rate is None else f"{rate / 1e6:.1f}" for rate in per_s]
    text = " ".join(["lanes, MB/s:", *texts])
    return text if len(text) <= width else f"{text[: width - 1].rpartition(' ')[0]} \u2026"


def fit(pieces: list[Piece], width: int) -> str:
    """Return the pieces as one text of at most `width` characters, as long as any can go."""
    left = list(pieces)
    while len(left) > 1 and len(_joined(left)) > width:
        left.remove(max(left, key=lambda piece: piece.rank))
    return _joined(left)


def _joined(pieces: list[Piece]) -> str:
    return ", ".join(piece.text for piece in pieces)


def under_way(files: list[LargeFile], lines: int, width: int) -> list[str]:
    """Return a line for each file that has begun to arrive, the furthest first, or for the rest."""
    if not lines:
        return []
    files = [each for each in files if each.done_bytes]
    listed = sorted(files, key=lambda each: (-each.done_bytes / max(each.size_bytes, 1), each.path))
    shown = listed if len(listed) <= lines else listed[: lines - 1]
    more = [f"and {len(listed) - len(shown)} more"] if len(shown) < len(listed) else []
    return [*(_of_file(each, width) for each in shown), *more]


def _of_file(file: LargeFile, width: int) -> str:
    percent = min(100 * file.done_bytes // max(file.size_bytes, 1), 100)
    text = f"{percent:3}% of {format_bytes(file.size_bytes)} "
    room = max(width - len(text), 1)
    return text + (file.path if len(file.path) <= room else f"\u2026{file.path[1 - room :]}"[:room])


def of_worker(totals: WorkerTotals) -> str:
    """Return, for example: 2.4 GB in 12 tasks, 1 of them again, 48.0 s (50.0 MB/s)."""
    rate = format_bytes(totals.bytes / max(totals.seconds, 0.001))
    texts = [
        f"{format_bytes(totals.bytes)} in {count(totals.tasks, 'task')}",
        f"{totals.retries} of them again" if totals.retries else "",
        f"{format_duration(totals.seconds)} ({rate}/s)",
        f"{count(totals.connections_lost, 'connection')} lost" if totals.connections_lost else "",
    ]
    return ", ".join(filter(None, texts))


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def some_of(names: list[str], most: int) -> str:
    """Return the first of these names, at most so many, and of how many more there are."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


def files_and_folders(number: int) -> str:
    return f"{number} {'file or folder' if number == 1 else 'files and folders'}"


def format_bytes(number: float) -> str:
    """Return bytes in powers of 1000, as links' rates and disks' sizes are: "268.4 MB"."""
    if number < 999.5:
        return f"{number:.0f} B"
    power = 1
    while number / 1000**power >= 999.95 and power < 6:  # what rounds to 1000.0 is 1.0 of the next
        power += 1
    return f"{number / 1000**power:.1f} {'kMGTPE'[power - 1]}B"


def format_duration(seconds: float) -> str:
    if seconds < 59.95:
        return f"{max(seconds, 0.0):.1f} s"
    minutes, whole_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole_s} s"

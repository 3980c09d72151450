"""pscp.progress.progress: counters under threads, reporters by their output, words and numbers."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import select
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pscp.ground import terminal_text
from pscp.ground.terminal_text import pause_progress, printable, write_line
from pscp.options.options import Options
from pscp.progress.display import RichBar, make_reporter
from pscp.progress.progress import (
    CallbackReporter,
    Counters,
    Failure,
    JsonLines,
    LiveCounters,
    Notes,
    PlainLines,
    Reporter,
    Result,
    Ticking,
)
from pscp.progress.progress_words import (
    Rate,
    describe,
    fit,
    format_bytes,
    format_duration,
    lane_rates,
    outage,
    under_way,
)

MB = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def halfway() -> LiveCounters:
    return LiveCounters(
        bytes_total=100 * MB, plan_complete=True, bytes_done=0, bytes_resumed=20 * MB,
        files_total=12, files_done=3, lanes_alive=2, lanes_wanted=4, started_s=100.0,
    )  # fmt: skip


def test_an_outage_is_said() -> None:
    """A16: instead of a time that is left, and of no lanes."""
    now = halfway()
    now.set(lanes_alive=0, connections_lost=2)
    first, second = words(now, 8.0 * MB, 100, out_s=12)
    assert "connection lost, trying again (12 s)" in second
    assert not [word for word in first if word.endswith("left")]
    now.set(attempts=3)
    assert "connection lost, trying again (3rd time, 12 s)" in words(now, 0, 100, out_s=12)[1]


def words(*moment: Any, **more: Any) -> tuple[list[str], list[str]]:
    first, second = describe(*moment, **more)
    return [piece.text for piece in first], [piece.text for piece in second]


def test_what_fits_into_a_line() -> None:
    first, _ = describe(halfway(), 8.0 * MB)
    assert fit(first, 80) == "20%, 20.0 MB of 100.0 MB, 8.0 MB/s, 10.0 s left"
    assert fit(first, 30) == "20%, 8.0 MB/s, 10.0 s left"
    assert fit(first, 15) == "20%, 8.0 MB/s"
    assert fit(first, 1) == "20%"


def test_large_files_under_way() -> None:
    counters = LiveCounters()
    for number in range(6):
        counters.begin_file(number, f"folder/{number}.bin", 200 * MB)
        counters.add_to_file(number, number * 10 * MB)
    counters.end_file(4)
    seen = counters.snapshot()
    counters.add_to_file(5, 9 * MB)
    assert under_way([*seen.large.values()], 3, 80) == [
        " 25% of 200.0 MB folder/5.bin", " 15% of 200.0 MB folder/3.bin", "and 2 more",
    ]  # fmt: skip
    assert under_way([*seen.large.values()], 0, 80) == []
    [line] = under_way([seen.large[5]], 4, 25)
    assert line == " 25% of 200.0 MB \u2026r/5.bin"


def test_a_large_file_that_is_hashed_is_named() -> None:
    """It counts once it is over: it stood at 100%, and 0 B/s."""
    counters = LiveCounters(bytes_total=1000, bytes_resumed=1000, files_total=2, files_resumed=1)
    counters.set(plan_complete=True)
    assert words(counters.snapshot(), 0)[0][0] == "100%"
    counters.begin_file(1, "folder/scan.raw", 200 * MB, is_hashed=True)
    first, second = words(counters.snapshot(), 0)
    assert first == ["1.0 kB of 1.0 kB", "0 B/s"]
    assert second[:2] == ["1 of 2 files", "hashing scan.raw (200.0 MB)"]
    counters.begin_file(2, "a" * 99, 200 * MB, is_hashed=True)
    counters.set(files_to_hash=2)
    first, second = words(counters.snapshot(), 0)
    assert first == ["hashing for the manifest: 0 B of 0 B"]
    assert second == ["0 of 2 files", "hashing scan.raw (200.0 MB) and 1 more"]
    counters.end_file(1)
    assert f"hashing \u2026{'a' * 31} (200.0 MB)" in words(counters.snapshot(), 0)[1]


@dataclasses.dataclass
class Made:
    """A reporter that reports when it is told to, and what it has written."""

    reporter: Any
    err: io.StringIO
    out: io.StringIO
    clock: Clock


def made(kind: Any, is_on_out: bool = False) -> Made:
    err, out, clock = io.StringIO(), io.StringIO(), Clock()
    reporter = kind(out=out, clock=clock) if is_on_out else kind(err, out, clock)
    reporter.period_s = 3600
    return Made(reporter, err, out, clock)


def progress_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "progress"]


class Broken(io.StringIO):
    """A stream whose reader went away."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_counters_lose_nothing_between_threads() -> None:
    counters = LiveCounters()

    def count() -> None:
        for _ in range(2000):
            counters.add(bytes_done=3, lanes_alive=-1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counters.bytes_done, counters.lanes_alive) == (24000, -8000)


def test_counters_of_copies_that_follow_each_other_are_added() -> None:
    first = Counters(files_done=3, bytes_sent=10, lanes_alive=4, verified=False)
    now = Counters(files_done=2, bytes_sent=5, lanes_alive=8, host="h", started_s=7.0)
    both = first + now
    assert (both.files_done, both.bytes_sent, both.verified) == (5, 15, False)
    assert (both.lanes_alive, both.host, both.started_s) == (8, "h", 7.0)
    assert (first.files_done, now.files_done) == (3, 2)


@pytest.mark.parametrize(
    ("fields", "is_terminal", "kind"),
    [
        ({}, True, RichBar),
        ({}, False, Notes),
        ({"progress": "bar"}, True, RichBar),
        ({"progress": "bar"}, False, PlainLines),
        ({"progress": "plain"}, True, PlainLines),
        ({"progress": "json"}, True, JsonLines),
        ({"progress": "none"}, True, Notes),
        ({"quiet": True}, True, Notes),
        ({"quiet": True, "progress": "json"}, True, JsonLines),
        ({"quiet": True, "progress": "plain"}, False, Notes),
        ({"quiet": True, "dry_run": True, "progress": "json"}, True, JsonLines),
        ({"dry_run": True}, True, Notes),
        ({"dry_run": True, "progress": "plain"}, False, Notes),
        ({"check": True, "dry_run": True, "progress": "plain"}, False, PlainLines),
        ({"dry_run": True, "progress": "json"}, True, JsonLines),
    ],
)
def test_make_reporter(fields: dict[str, object], is_terminal: bool, kind: type) -> None:
    assert type(make_reporter(Options(**fields), is_terminal)) is kind  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        Reporter,
        lambda: Notes(io.StringIO(), io.StringIO()),
        lambda: PlainLines(io.StringIO(), io.StringIO()),
        lambda: JsonLines(out=io.StringIO()),
        lambda: RichBar(io.StringIO(), io.StringIO()),
        lambda: CallbackReporter(lambda counters: None),
        lambda: PlainLines(Broken(), Broken()),
        lambda: JsonLines(out=Broken()),
        lambda: RichBar(Broken(), Broken()),
    ],
)
def test_every_reporter_starts_stops_twice_and_starts_again(make: Callable[[], Reporter]) -> None:
    reporter = make()
    reporter.stop(None)  # before it ever started
    for _ in range(2):
        reporter.start(halfway())
        if isinstance(reporter, Ticking):
            reporter.tick()
        reporter.note("a: went wrong")
        reporter.line("a")
        reporter.stop(Result())
        reporter.stop(None)
    reporter.note("after the end")
    assert not progress_threads()


def test_notes_are_named_and_printable() -> None:
    err, out = io.StringIO(), io.StringIO()
    reporter = Notes(err, out)
    reporter.note("a\x1b[2J\nb: gone")
    reporter.line("a\udcff")
    reporter.stop()
    assert err.getvalue() == "pscp: a\\x1b[2J\\x0ab: gone\n"
    assert out.getvalue() == "a\\xff\n"


@pytest.fixture
def unread() -> Iterator[tuple[int, TextIO]]:
    """A pipe that is full of x, and nobody reads: its descriptor, and the stream to write to."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, b"x" * 4096):
            pass
    os.set_blocking(writing, True)
    # the reader is closed first: what is unwritten then is an error, and no wait
    gone = contextlib.suppress(BrokenPipeError)
    with gone, open(writing, "w") as write, open(reading, "rb") as read:
        yield read.fileno(), write


def drained(fd: int, reporter: Reporter) -> list[str]:
    """What is read up to the reporter's end."""
    found = b""
    stopping = threading.Thread(target=reporter.stop)
    stopping.start()
    while stopping.is_alive() or select.select([fd], [], [], 0)[0]:
        if select.select([fd], [], [], 0.05)[0]:
            found += os.read(fd, 65536)
    return found.decode().lstrip("x").splitlines()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [Notes, PlainLines, RichBar])
def test_a_note_does_not_wait_for_its_reader(make: type[Notes], unread: tuple[int, TextIO]) -> None:
    fd, stream = unread
    reporter = make(stream)
    reporter.start(LiveCounters())
    for number in range(5000):
        reporter.note(f"{number} went wrong")
    assert drained(fd, reporter) == [f"pscp: {number} went wrong" for number in range(5000)]


@pytest.mark.timeout(60)
def test_notes_that_nobody_reads_take_up_little(unread: tuple[int, TextIO]) -> None:
    fd, stream = unread
    reporter, note = Notes(stream), "x" * MB
    for _ in range(50):
        reporter.note(note)
    *shown, last = drained(fd, reporter)
    assert len(shown) + int(last.split()[1]) == 50
    assert "nobody read them" in last and len(shown) < 12


def test_plain_lines() -> None:
    plain, counters = made(PlainLines), halfway()
    plain.reporter.start(counters)
    plain.clock.now_s += 2
    counters.add(bytes_done=20 * MB)
    plain.reporter.tick()
    plain.reporter.stop(Result())
    assert plain.err.getvalue() == (
        "40%, 40.0 MB of 100.0 MB, 10.0 MB/s, 6.0 s left, "
        "3 of 12 files, 2 of 4 lanes, 2.0 s so far, 20.0 MB resumed\n"
    )


def test_a_link_that_stands_still_is_said() -> None:
    """15: for 37 s only "4 of 4 lanes, 0 B/s"."""
    plain, counters = made(PlainLines), halfway()
    plain.reporter.start(counters)
    for _ in range(3):
        plain.clock.now_s += 4
        plain.reporter.tick()
    counters.add(bytes_done=MB)
    plain.reporter.tick()
    plain.reporter.stop(Result())
    lines = plain.err.getvalue().splitlines()
    assert ["nothing for " in line for line in lines] == [False, False, True, False]
    assert "nothing for 8 s," in lines[2]


def test_json_lines() -> None:
    lines = made(JsonLines, is_on_out=True)
    lines.reporter.start(halfway())
    lines.clock.now_s += 1.5
    lines.reporter.note("a\n\udcff: gone")
    lines.reporter.line("b")
    failure = Failure("a", "VerifyError", "differs")
    lines.reporter.stop(Result(files=2, digests={"b": "00"}, failures=(failure,)))
    note, line, progress, end = map(json.loads, lines.out.getvalue().splitlines())
    assert note == {"event": "note", "text": "a\n\udcff: gone"}
    assert line == {"event": "line", "text": "b"}
    assert progress["event"] == "progress"
    assert (progress["elapsed_s"], progress["bytes_resumed"]) == (1.5, 20 * MB)
    assert (end["event"], end["ok"], end["files"], end["digests"]) == ("end", False, 2, {"b": "00"})
    assert {each.name for each in dataclasses.fields(Result)} <= set(end)
    assert end["failures"] == [
        {"path": "a", "error": "VerifyError", "message": "differs", "hint": "", "errno": 0}
    ]


@pytest.mark.parametrize("columns", [1, 5, 20, 40, 80, 200])
@pytest.mark.parametrize("counters", [LiveCounters(lanes_alive=1), halfway()])
def test_bar_at_any_width(
    columns: int, counters: LiveCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    bar = made(RichBar)
    bar.reporter.start(counters)
    bar.reporter.tick()
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", bar.err.getvalue())
    # A ^C that is typed has room behind the last line, else a line would stay.
    assert max(map(len, drawn.splitlines())) <= max(1, columns - 2)
    bar.reporter.note("a [b]c[/b] :smile: \x1b: " + "long " * 30 + "end")
    bar.reporter.tick()
    bar.reporter.stop(Result())
    shown = bar.err.getvalue()
    assert "pscp: a [b]c[/b] :smile: \\x1b: " + "long " * 30 + "end" in shown
    assert shown.endswith("\x1b[2K")  # the bar is gone
    if columns == 80 and counters.bytes_total:
        assert "20.0 MB of 100.0 MB" in shown
        assert "3 of 12 files, 2 of 4 lanes, 20.0 MB resumed" in shown


@pytest.mark.parametrize(("columns", "is_asked"), [(120, False), (80, True), (80, False)])
def test_a_wide_terminal_shows_the_rate_of_each_lane(
    columns: int, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does a narrow one with -v. A lane that is not up has none."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    bar = made(RichBar)
    bar.reporter.wants_files = is_asked
    moved: list[int | None] = [0, None]
    counters = LiveCounters(lanes_alive=1)
    counters.lanes_moved = lambda: moved
    bar.reporter.start(counters)
    bar.reporter.tick()
    moved[:] = [30_000_000, 5_000_000, None]  # another lane was opened meanwhile
    bar.clock.now_s += 2
    bar.reporter.tick()
    bar.reporter.stop(Result())
    assert ("lanes, MB/s: 15.0 0.0 -" in bar.err.getvalue()) is (is_asked or columns == 120)


@given(st.lists(st.none() | st.floats(0, 1e12), max_size=300), st.integers(15, 200))
def test_rates_of_lanes_go_into_a_line(rates: list[float | None], width: int) -> None:
    text = lane_rates(rates, width)
    assert len(text) <= width
    assert text.startswith("lanes, MB/s:")


def test_the_bar_says_where_it_connects_to_and_goes_away_for_questions() -> None:
    bar = made(RichBar)
    reporter, err = bar.reporter, bar.err
    reporter.start(LiveCounters(host="host\x1b", started_s=97.0))
    reporter.tick()
    assert "connecting to host\\x1b (3.0 s)" in err.getvalue()
    with pause_progress():
        assert err.getvalue().endswith("\x1b[2K")
        shown = err.getvalue()
        reporter.tick()
        assert err.getvalue() == shown
    reporter.tick()
    assert "connecting to host" in err.getvalue().removeprefix(shown)
    reporter.stop()


def test_the_bar_does_not_count_the_time_in_which_a_person_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([50.0, 52.0])
    clock = SimpleNamespace(monotonic=lambda: next(times))
    bar = made(RichBar)
    bar.reporter.start(LiveCounters(host="host", started_s=97.0))
    with monkeypatch.context() as patched:
        patched.setattr(terminal_text, "time", clock)
        with pause_progress():
            pass
    bar.reporter.tick()
    bar.reporter.stop()
    assert "connecting to host (1.0 s)" in bar.err.getvalue()


def test_bar_waits_for_the_first_lane() -> None:
    err = io.StringIO()
    reporter = RichBar(err, io.StringIO())
    reporter.start(LiveCounters())
    reporter.tick()
    reporter.stop(None)
    assert err.getvalue() == ""


def test_callback_hands_on_to_the_reporter_inside() -> None:
    err, out = io.StringIO(), io.StringIO()
    reporter = CallbackReporter(lambda counters: None, Notes(err, out))
    reporter.start(LiveCounters())
    reporter.note("a")
    reporter.line("b")
    reporter.stop(Result())
    assert (err.getvalue(), out.getvalue()) == ("pscp: a\n", "b\n")


def test_what_a_callback_raises_comes_out_of_stop_once() -> None:
    calls: list[Counters] = []

    def fail(counters: Counters) -> None:
        calls.append(counters)
        raise LookupError("mine")

    reporter = CallbackReporter(fail)
    reporter.period_s = 3600
    reporter.start(LiveCounters())
    reporter.tick()
    with pytest.raises(LookupError, match="mine"):
        reporter.stop(Result())
    reporter.stop(None)
    assert len(calls) == 1


def test_rate_forgets_what_is_long_ago() -> None:
    rate = Rate()
    assert rate.per_s(0, 0) == 0
    assert rate.per_s(1, 100) == 100
    assert rate.per_s(11, 100) == 0
    assert rate.per_s(12, 150) == 50 / 11
    assert rate.per_s(12, 0) == 0  # a chunk was thrown away


def test_a_total_that_was_counted_ahead_is_about_right() -> None:
    now = LiveCounters(
        bytes_total=40 * MB, bytes_done=20 * MB, files_total=50, files_done=10, files_unchanged=20,
        files_counted=100, bytes_counted=90 * MB, bytes_unneeded=10 * MB,
    )  # fmt: skip
    first, second = words(now, 10.0 * MB)
    assert first == ["25%", "20.0 MB of about 80.0 MB", "10.0 MB/s", "6.0 s left"]
    assert second[0] == "30 of about 100 files"
    assert (now.as_dict()["bytes_expected"], now.as_dict()["files_expected"]) == (80 * MB, 100)
    now.add(bytes_total=45 * MB)  # more than was counted
    assert words(now, 0)[0][:2] == ["23%", "20.0 MB of about 85.0 MB"]
    now.set(plan_complete=True)
    first, second = words(now, 10.0 * MB)
    assert first == ["23%", "20.0 MB of 85.0 MB", "10.0 MB/s", "6.5 s left"]
    assert second[0] == "30 of 50 files"
    assert (now.bytes_expected, now.files_expected) == (85 * MB, 50)


def test_the_time_of_logins_is_not_in_the_rate() -> None:
    rate = Rate()
    for now_s in range(3):
        assert rate.per_s(now_s, 0) == 0
    assert rate.per_s(3, 50) == 50


def test_describe_without_a_total() -> None:
    pieces = words(Counters(lanes_alive=1, bytes_done=5), 0)
    assert pieces == (["5 B", "0 B/s"], ["1 of 1 lane"])
    first, second = words(Counters(bytes_total=2000, bytes_done=5, files_failed=1), 9)
    assert first == ["5 B of 2.0 kB+", "9 B/s"]
    assert second[-1] == "1 failed"


def hashing() -> LiveCounters:
    """Return the counters of a copy that is over, and hashes its files for the manifest."""
    counters = halfway()
    counters.add(bytes_done=80 * MB, files_done=9)
    counters.set(bytes_to_hash=100 * MB, files_to_hash=14)
    return counters


def test_the_hashing_for_a_manifest_is_told() -> None:
    """Its own amounts and rate: the copy's would be 100% and 0 B/s to the end."""
    err, clock = io.StringIO(), Clock()
    lines = PlainLines(err, clock=clock)
    lines.start(counters := hashing())
    for _ in range(2):
        lines.tick()
        clock.now_s += 2
        counters.add(bytes_hashed=20 * MB, files_hashed=3)
    lines.tick()
    lines.stop()
    assert err.getvalue().splitlines()[-1] == (
        "hashing for the manifest: 40.0 MB of 100.0 MB, 10.0 MB/s, 6.0 s left, 6 of 14 files, "
        "4.0 s so far"
    )
    first, _ = describe(counters, 10.0 * MB)
    assert fit(first, 50) == "hashing for the manifest: 40.0 MB of 100.0 MB"


def test_the_bar_of_the_hashing_begins_anew() -> None:
    counters = hashing()
    counters.add(bytes_hashed=50 * MB)
    console = Console(width=120, height=40, file=io.StringIO())
    console.print(RichBar(io.StringIO())._render(counters.snapshot(), console))
    assert isinstance(console.file, io.StringIO)
    bar, second = console.file.getvalue().splitlines()
    assert "hashing for the manifest: 50.0 MB of 100.0 MB" in bar and "0 of 14 files" in second
    counters = LiveCounters(files_to_hash=2, host="h")  # all was there: nothing has moved
    console.print(RichBar(io.StringIO())._render(counters.snapshot(), console))
    assert "connecting" not in console.file.getvalue()


COUNTS = st.integers(0, 2**63)


@given(
    st.builds(Counters, COUNTS, st.booleans(), COUNTS, COUNTS),
    st.floats(0, allow_infinity=False, allow_nan=False),
)
def test_describe_any_counters(counters: Counters, bytes_per_s: float) -> None:
    for pieces in describe(counters, bytes_per_s):
        assert all(piece.text for piece in pieces)
        assert fit(pieces, 1)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (outage(1, 0), "connection lost, trying again (1st time)"),
        (outage(2, 0), "connection lost, trying again (2nd time)"),
        (outage(11, 0), "connection lost, trying again (11th time)"),
        (outage(23, 0), "connection lost, trying again (23rd time)"),
        (outage(112, 0), "connection lost, trying again (112th time)"),
        (format_bytes(0), "0 B"),
        (format_bytes(999), "999 B"),
        (format_bytes(999.9), "1.0 kB"),
        (format_bytes(1000), "1.0 kB"),
        (format_bytes(268_435_456), "268.4 MB"),
        (format_bytes(999_949), "999.9 kB"),
        (format_bytes(999_999), "1.0 MB"),
        (format_bytes(2**40), "1.1 TB"),
        (format_bytes(10**21), "1000.0 EB"),
        (format_duration(-1), "0.0 s"),
        (format_duration(1.23), "1.2 s"),
        (format_duration(59.94), "59.9 s"),
        (format_duration(59.96), "1 min 0 s"),
        (format_duration(3599.6), "1 h 0 min"),
        (format_duration(7380), "2 h 3 min"),
        (printable("naïve 名 a\\b"), "naïve 名 a\\b"),
        (printable("\0\t\r\x7f\x9b"), "\\x00\\x09\\x0d\\x7f\\x9b"),
        (printable("\udc80\udcff\ud800"), "\\x80\\xff\\ud800"),
        (printable("a\u202eb\u2028"), "a\\u202eb\\u2028"),
    ],
)
def test_numbers_and_names_as_they_are_shown(made: str, text: str) -> None:
    assert made == text


@given(st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF, exclude_categories=[])))
def test_printable_is_one_line_of_unicode(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert shown.splitlines() in ([], [shown])
    assert printable(shown) == shown


def test_write_line_fits_the_encoding_and_survives_the_stream() -> None:
    raw = io.BytesIO()
    ascii_only = io.TextIOWrapper(raw, encoding="ascii")
    write_line(ascii_only, "naïve")
    assert raw.getvalue() == b"na\\xefve\n"
    closed = io.StringIO()
    closed.close()
    write_line(closed, "a")
    write_line(None, "a")
    write_line(Broken(), "a")

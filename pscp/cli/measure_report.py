"""Shows a measurement: tables and sentences, or one JSON object; and its steps as they are done.

Not here: the figures (measuring/measure.py), what follows from them (measuring/advice.py).
Read next: measuring/measure.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from pscp.ground.terminal_text import is_terminal, print_line, printable, write_line, write_text
from pscp.measuring.advice import Measurement, Point, Setting, Windows, mib, shown_ms
from pscp.options.options import Options
from pscp.progress.progress import format_duration

_COLUMNS = 90
Rows = Sequence[Sequence[str]]  # the first is the heading


@contextlib.contextmanager
def show_steps(options: Options) -> Iterator[Callable[[str], None]]:
    """Show on stderr what is being done: a line that changes on a terminal, else lines with -v."""
    style = "none" if options.quiet else options.progress
    if is_terminal(sys.stderr) and style in ("auto", "bar"):
        from rich.console import Console
        from rich.status import Status

        status = Status("", console=Console(file=sys.stderr))

        def say(text: str) -> None:  # the first word comes after the login, which may prompt
            status.update(printable(text))
            status.start()

        try:
            yield say
        finally:
            status.stop()
    elif style == "plain" or (options.verbose and style != "none"):
        yield lambda text: write_line(sys.stderr, f"pscp: {text}")
    else:
        yield lambda text: None


def show(found: Measurement, as_json: bool) -> None:
    """Write the measurement on stdout, as tables and sentences or as JSON."""
    if as_json:
        print_line(json.dumps(dataclasses.asdict(found)))
        return
    put = put_rich if is_terminal(sys.stdout) else put_plain
    least = shown_ms(found.rtt_min_s)
    print_line(
        f"{found.host}: a round trip takes {shown_ms(found.rtt_s)} (at least {least}); "
        f"measured in {format_duration(found.seconds)}, no disk was read or written",
    )
    put(cipher_rows(found.ciphers))
    put(connection_rows(found.connections))
    if found.planes:
        put(plane_rows(found.planes))
    put(window_rows(found.windows))
    put(kernel_rows(found))
    for line in conclusion(found):
        print_line(line)


# --- what the tables hold


def cipher_rows(points: Sequence[Point]) -> Rows:
    heading = ["cipher, one connection", "push MiB/s", "pull", "CPU-s/GiB here", "there"]
    return [heading, *([point.cipher, *rates(point), *cpu(point)] for point in points)]


def connection_rows(points: Sequence[Point]) -> Rows:
    heading = [f"connections, {points[0].cipher}", "push MiB/s", "pull"]
    return [heading, *([str(point.connections), *rates(point)] for point in points)]


def plane_rows(points: Sequence[Point]) -> Rows:
    over_ssh, *direct = points
    heading = [f"plane, {over_ssh.connections} connections", "push MiB/s", "pull"]
    return [heading, ["ssh", *rates(over_ssh)], *([p.cipher, *rates(p)] for p in direct)]


def window_rows(windows: Windows) -> Rows:
    rows = [["one connection", "MiB in a round trip", "MiB/s"]]
    rows.append(["moved", "", mib(windows.bytes_per_s)])
    limits = (
        ("an SSH channel's window", windows.channel_bytes, windows.channel_bytes_per_s),
        ("the sockets' buffers", windows.buffer_bytes, windows.buffer_bytes_per_s),
    )
    for name, size, rate in limits:
        shown = ("unknown", "") if size is None or rate is None else (mib(size), mib(rate))
        rows.append([f"{name} allow{'' if name.endswith('rs') else 's'}", *shown])
    return rows


def kernel_rows(found: Measurement) -> Rows:
    ends = (found.near, found.far)
    names = sorted({name for end in ends for name in end.settings})
    return [
        ["kernel", f"here: {found.near.system}", f"there: {found.far.system}"],
        *([name, *(end.settings.get(name, "") for end in ends)] for name in names),
    ]


def rates(point: Point) -> tuple[str, str]:
    return mib(point.push.bytes_per_s), mib(point.pull.bytes_per_s)


def cpu(point: Point) -> Iterator[str]:
    """Yield the CPU seconds a GiB, of both directions on average, here and there."""
    for name in ("near_cpu_s_per_gib", "far_cpu_s_per_gib"):
        known = [x for way in (point.push, point.pull) if (x := getattr(way, name)) is not None]
        yield f"{sum(known) / len(known):.2f}" if known else "unknown"


def conclusion(found: Measurement) -> Iterator[str]:
    advice = found.advice
    for note in found.notes:
        yield f"note: {note}"
    yield "Why:"
    for reason in advice.reasons:
        yield from textwrap.wrap(f"- {reason}", _COLUMNS, subsequent_indent="  ")
    yield "Recommended:"
    cipher = "" if " " in advice.cipher else f" --cipher {advice.cipher}"  # " ": as configured
    yield f"  pscp -c {advice.connections}{cipher}"
    yield from (f"  {line}" for line in sysctl_lines(advice.settings))
    if found.saved:
        yield "Saved for this host: copies use it, unless -c, --cipher or ssh_config say otherwise."


def sysctl_lines(settings: Sequence[Setting]) -> Iterator[str]:
    for each in settings:
        yield f"{each.end}: sysctl {each.name}={shlex.quote(each.value)}  (now {each.now})"


# --- how they are drawn


def put_plain(rows: Rows) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *rest = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        print_line("  ".join([f"{first.strip():<{widths[0]}}", *rest]).rstrip())
    print_line("")


def put_rich(rows: Rows) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, pad_edge=False)
    for place, title in enumerate(rows[0]):
        justify: Literal["left", "right"] = "right" if place else "left"
        table.add_column(Text(printable(title)), justify=justify, overflow="fold")
    for row in rows[1:]:
        table.add_row(*(Text(printable(cell)) for cell in row))
    drawn = Console(file=sys.stdout)
    with drawn.capture() as text:
        drawn.print(table)
    write_text(text.get(), sys.stdout)

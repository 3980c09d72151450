"""Plots as SVG, drawn by hand: rate against RTT, rate against connections, small files.

Not here: what was measured (results.py). Read next: __main__.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from html import escape

from results import Case, Report

PLOTS = {
    "rate-rtt": "Rate against round-trip time, 1 Gbit/s, one file",
    "rate-connections": "Rate against the number of connections",
    "small-files": "Small files",
}
WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 80, 180, 64, 60
COLOURS = (
    "#0b5fa5", "#d1495b", "#2e933c", "#8d5fb4", "#e08e0b", "#4a4e69",
    "#00a6a6", "#a3320b", "#c23fa0", "#6b8e23", "#7a5230", "#888888",
)  # fmt: skip
FIXED_ROW = re.compile(r"pscp -c (\d+)")

Point = tuple[float, float]
Series = dict[str, list[Point]]


def draw(report: Report) -> Iterator[tuple[str, str]]:
    """Name and SVG of each plot that there are numbers for."""
    by_rtt = rates_by_rtt(report)
    if any(len(points) > 1 for points in by_rtt.values()):
        yield "rate-rtt", lines(by_rtt, PLOTS["rate-rtt"], "RTT, ms", "Mbit/s", log=False)
    by_connections = rates_by_connections(report)
    if by_connections:
        title = PLOTS["rate-connections"]
        yield (
            "rate-connections",
            lines(by_connections, title, "connections", "of the best", log=True),
        )
    files = small_file_rates(report)
    if files:
        yield "small-files", bars(files, PLOTS["small-files"], "files/s")


def pushes(report: Report, keep: Callable[[Case], bool]) -> list[Case]:
    return [case for case in report.cases if ", push," in case.title and keep(case)]


def rates_by_rtt(report: Report) -> Series:
    series: Series = {}
    for case in pushes(report, lambda c: c.regime in ("wan-10", "wan-100", "wan-240")):
        if case.kind == "file":
            for row in case.rows:
                rate = case.rate(row.tool)
                if rate is not None:
                    series.setdefault(row.tool, []).append((case.rtt_ms, rate))
    return {tool: sorted(points) for tool, points in series.items()}


def rates_by_connections(report: Report) -> Series:
    """As parts of the best: the links' rates are far apart."""
    series: Series = {}
    for case in pushes(report, lambda c: c.regime == "fixed"):
        found = [(FIXED_ROW.fullmatch(row.tool), case.rate(row.tool)) for row in case.rows]
        points = [(float(match[1]), rate) for match, rate in found if match and rate]
        best = max((rate for _, rate in points), default=0.0)
        if best:
            series[case.kind] = [(count, rate / best) for count, rate in points]
    return series


def small_file_rates(report: Report) -> dict[str, dict[str, float]]:
    groups = {}
    for case in pushes(report, lambda c: c.regime.startswith("small") and c.kind == "tree"):
        limit = case.limit
        rates = {row.tool: case.rate(row.tool) for row in case.rows if row.tool != limit}
        groups[case.title] = {tool: rate for tool, rate in rates.items() if rate}
    return {title: rates for title, rates in groups.items() if rates}


def round_up(value: float) -> float:
    """To the next of 1, 2, 5, 10 and so on: the axis ends there."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * 1.001)


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


def frame(body: Sequence[str], title: str, height: int = HEIGHT) -> str:
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">'
    )
    ground = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    head = text(16, 24, title, 'font-size="16" font-weight="bold"')
    return "\n".join([start, ground, head, *body, "</svg>"]) + "\n"


def lines(series: Series, title: str, x_label: str, y_label: str, *, log: bool) -> str:
    """A line for each series. With log the x axis is logarithmic, with a mark at each point."""
    xs = sorted({x for points in series.values() for x, _ in points})
    top = round_up(max(y for points in series.values() for _, y in points))
    at: Callable[[float], float] = math.log2 if log else float
    low, high = (at(xs[0]), at(xs[-1])) if log else (0.0, xs[-1])
    span = (high - low) or 1.0

    def x_of(x: float) -> float:
        return LEFT + (at(x) - low) / span * (WIDTH - LEFT - RIGHT)

    def y_of(y: float) -> float:
        return HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)

    body = list(axes(xs, top, x_of, y_of, x_label, y_label))
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [
            f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"/>'
            for x, y in points
        ]
        body.append(text(WIDTH - RIGHT + 20, TOP + 20 * number + 10, name, f'fill="{colour}"'))
    return frame(body, title)


def axes(
    xs: Sequence[float],
    top: float,
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
    x_label: str,
    y_label: str,
) -> Iterator[str]:
    for part in range(6):
        y = y_of(top * part / 5)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        yield text(LEFT - 8, y + 4, f"{top * part / 5:g}", 'text-anchor="end"')
    for x in xs:
        yield text(x_of(x), HEIGHT - BOTTOM + 20, f"{x:g}", 'text-anchor="middle"')
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield text(middle, HEIGHT - BOTTOM + 44, x_label, 'text-anchor="middle"')
    yield text(16, TOP - 10, y_label)


def bars(groups: dict[str, dict[str, float]], title: str, unit: str) -> str:
    """A group of bars for each case, the fastest first."""
    body: list[str] = []
    y, left = TOP + 10, 150
    for name, rates in groups.items():
        body.append(text(20, y + 10, f"{name}, {unit}", 'font-weight="bold"'))
        y += 22
        for tool, rate in sorted(rates.items(), key=lambda item: -item[1]):
            length = rate / max(rates.values()) * (WIDTH - left - 100)
            colour = COLOURS[0] if tool == "pscp" else "#9aa5b1"
            body.append(text(left - 8, y + 13, tool, 'text-anchor="end"'))
            body.append(
                f'<rect x="{left}" y="{y}" width="{length:.1f}" height="16" fill="{colour}"/>'
            )
            body.append(text(left + length + 6, y + 13, f"{rate:,.0f}"))
            y += 22
        y += 16
    return frame(body, title, y + 10)

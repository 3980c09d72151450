"""Plots as SVG: rate against RTT, rate against connections, small files.

Not here: what was measured (results.py). Read next: __main__.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results import Case, Report
from tools import FIXED, OWN_FIXED

PLOTS = {
    "rate-rtt": "Rate against round-trip time, 1 Gbit/s, one file",
    "rate-connections": "Rate against the number of connections",
    "small-files": "Small files",
}
Series = Mapping[str, Sequence[Any]]


def draw(report: Report) -> Iterator[tuple[str, str]]:
    """Name and SVG of each plot that there are numbers for."""
    import pygal  # here: it takes long to load

    pushes = [case for case in report.cases if case.way == "push"]
    by_rtt = rates_by_rtt(pushes)
    if any(len(points) > 1 for points in by_rtt.values()):
        chart = pygal.XY(x_title="RTT, ms", y_title="Mbit/s")
        yield "rate-rtt", drawn(chart, PLOTS["rate-rtt"], by_rtt)
    if by_connections := rates_by_connections(pushes):
        # Side by side, as on a logarithmic axis: each number is about twice the one before.
        chart = pygal.Line(
            x_title="connections", y_title="of the best", x_labels=list(map(str, FIXED))
        )
        yield "rate-connections", drawn(chart, PLOTS["rate-connections"], by_connections)
    if trees := [
        case for case in pushes if case.regime.startswith("small") and case.kind == "tree"
    ]:
        tools = sorted({row.tool for case in trees for row in case.rows if row.tool != case.limit})
        rates = {case.title: [case.rate(tool) for tool in tools] for case in trees}
        chart = pygal.HorizontalBar(x_title="files/s", x_labels=tools)
        yield "small-files", drawn(chart, PLOTS["small-files"], rates)


def rates_by_rtt(pushes: Sequence[Case]) -> Series:
    series: dict[str, list[tuple[float, float]]] = {}
    for case in sorted(pushes, key=lambda case: case.rtt_ms):
        if case.regime in ("wan-10", "wan-100", "wan-240") and case.kind == "file":
            for row in case.rows:
                if rate := case.rate(row.tool):
                    series.setdefault(row.tool, []).append((case.rtt_ms, rate))
    return series


def rates_by_connections(pushes: Sequence[Case]) -> Series:
    """As parts of the best: the links' rates are far apart."""
    series = {}
    for case in pushes:
        rates = [case.rate(tool.name) for tool in OWN_FIXED]
        if case.regime == "fixed" and (best := max(rate or 0 for rate in rates)):
            series[case.kind] = [rate and rate / best for rate in rates]
    return series


def drawn(chart: Any, title: str, series: Series) -> str:
    chart.config(title=title, width=760, height=480, js=(), include_x_axis=True)
    chart.config(legend_at_bottom=True, truncate_legend=-1)
    for name, values in series.items():
        chart.add(name, values)
    svg: str = chart.render(is_unicode=True, disable_xml_declaration=True)
    return re.sub(r"(?s)<script.*?</script>|<!--.*?-->", "", svg) + "\n"

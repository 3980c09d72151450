"""--fan-out: one copy to several destinations, on the command line.

Not here: how it is done (../deliveries.py), what is shown meanwhile (fan_display.py), one copy
(copy.py).
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict

from pscp import log
from pscp.cli import fan_display
from pscp.cli.closing import closing_line, table
from pscp.cli.run_log import RunLog, run_log
from pscp.deliveries import Delivery, fan_out
from pscp.locations import Location
from pscp.options import Options
from pscp.progress import count, format_bytes, format_duration
from pscp.signals import raise_on_signals
from pscp.terminal_text import is_terminal, write_line


def run(
    sources: Sequence[Location],
    destinations: Sequence[Location],
    options: Options,
    max_hosts: int | None,
    words: Sequence[str],
) -> int:
    """Copy to all destinations; return the worst exit code."""
    rows = [fan_display.Row(place) for place in destinations]
    display = fan_display.make_display(options, rows, is_terminal=is_terminal(sys.stderr))
    by_name = {row.place.text: row for row in rows}
    with (
        raise_on_signals(),
        log.show_records(options.debug, display.note),
        run_log("pscp", words, options) as kept,
    ):
        fan_display.begin(display)
        try:
            found = fan_out(
                sources,
                destinations,
                options=options,
                max_hosts=max_hosts,
                keep_digests=False,
                reporter=lambda name: kept.of(fan_display.OfRow(by_name[name], display)),
            )
        finally:
            display.stop(None)
        conclude(found, options, display, kept)
    differs = options.check and any(each.result and each.result.files for each in found)
    return max([*(each.exit_code for each in found), int(differs)])


def conclude(
    found: Sequence[Delivery], options: Options, display: fan_display.Display, log_: RunLog
) -> None:
    """Say of each destination what became of it and what it cost, and of all together."""
    is_told = not options.quiet and options.progress not in ("none", "json")
    for each in found:
        for text in told(each, options):
            log_.write(text)
            if is_told or each.error is not None:
                write_line(sys.stderr, text)
        if options.stats and each.result is not None and not options.quiet:
            for text in table(each.result):
                write_line(sys.stderr, text)
        if isinstance(display, fan_display.JsonRows):
            display.end_of(each.destination, ended(each))
    text = together(found)
    log_.write(text)
    if is_told:
        write_line(sys.stderr, text)


def told(delivery: Delivery, options: Options) -> list[str]:
    """Return the line, or the lines, about one destination."""
    if delivery.error is not None:
        where, what = delivery.destination, delivery.error.message
        hint = [f"      {delivery.error.hint}"] if delivery.error.hint else []
        return [f"pscp: {what}" if what.startswith(where) else f"pscp: {where}: {what}", *hint]
    assert delivery.result is not None
    cost = f"{format_bytes(delivery.bytes_read)} read for it, {delivery.cpu_s:.2f} s of CPU"
    text = f"{closing_line(delivery.result, options, delivery.destination)}; {cost}"
    if options.check or options.dry_run or options.transfer_test:  # that line names no place
        return [f"{delivery.destination}: {text}"]
    return [text]


def together(found: Sequence[Delivery]) -> str:
    """Return what became of all destinations, and what they cost this machine."""
    good = sum(each.ok for each in found)
    seconds = max((each.seconds for each in found), default=0.0)
    read_bytes = sum(each.bytes_read for each in found)
    here, below = (
        sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return (
        f"{good} of {count(len(found), 'destination')} complete in {format_duration(seconds)}; "
        f"{format_bytes(read_bytes)} read, CPU here: {here:.2f} s pscp, {below:.2f} s ssh"
    )


def ended(delivery: Delivery) -> dict[str, object]:
    """Return what the "end" event of a destination holds."""
    error = delivery.error
    return {
        "ok": delivery.ok,
        **(asdict(delivery.result) if delivery.result is not None else {}),
        "seconds": delivery.seconds,
        "bytes_read": delivery.bytes_read,
        "cpu_s": delivery.cpu_s,
        "error": type(error).__name__ if error is not None else None,
        "message": error.message if error is not None else "",
    }

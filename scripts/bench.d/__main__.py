"""scripts/bench: the command line; runs the regimes that are asked for and shows what came out.

Not here: what a regime is (regimes.py). Read next: regimes.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from compileall import compile_dir
from contextlib import closing
from pathlib import Path

from plots import draw
from regimes import QUICK, REGIMES
from results import Report, load
from rounds import Bench, compete
from stock import LeftOut, Stock
from tables import for_docs, for_terminal
from tools import PSCP

import pscp
from pscp.ground.errors import Interrupted, Terminated
from pscp.ground.signals import raise_on_signals

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUNS, QUICK_RUNS = 5, 1
PATIENCE_S = 60.0  # for taking down the lab, and removing what lies in memory
VERSIONS = {
    "pscp": [PSCP, "--version"],
    "OpenSSH": ["ssh", "-V"],
    "rsync": ["rsync", "--version"],
    "rclone": ["rclone", "version"],
    "lftp": ["lftp", "--version"],
    "iperf3": ["iperf3", "--version"],
    "mscp": ["mscp", "-h"],
    "hpnscp": ["hpnssh", "-V"],
}


def main() -> int:
    options = parse()
    older = load(options.json) if options.json and options.json.exists() else None
    report = Report(machine())
    try:
        with raise_on_signals(name="bench", patience_s=PATIENCE_S):
            wrong = measure(options, report)
    except (Interrupted, Terminated) as error:
        print("\nbench: stopped; everything it started has ended", file=sys.stderr)
        return error.exit_code
    finally:
        finish(options, report, older)
    for text in wrong:
        print(f"bench: {text}", file=sys.stderr)
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure pscp against the other tools that are installed, in turn. In the "
        "tables, pscp x is how many times as fast as that tool pscp is.",
        epilog="Regimes: " + "; ".join(f"{name}: {r.about}" for name, r in REGIMES.items()),
    )
    add = parser.add_argument
    add("--quick", action="store_true", help=f"smaller, once; by default only {', '.join(QUICK)}")
    add("--regime", action="append", choices=list(REGIMES), metavar="NAME", help="of those below")
    add("--tool", action="append", default=[], metavar="NAME", help="only tools named NAME...")
    compare = "another pscp, as of a checkout before a change, beside each run of this one"
    add("--compare", type=Path, metavar="PSCP", help=compare)
    add("--runs", type=int, metavar="N", help=f"runs of each tool ({RUNS}; quick: {QUICK_RUNS})")
    add("--scale", type=float, default=1.0, metavar="X", help="sizes times this, to try it out")
    add("--json", type=Path, metavar="FILE", help="save it; keeps FILE's other regimes")
    add(
        "--write-docs",
        action="store_true",
        help="keep what is found in docs/benchmarks.json, and "
        "write docs/benchmarks.md and docs/plots/ from all that is in it",
    )
    options = parser.parse_args()
    if options.compare and not os.access(options.compare, os.X_OK):
        parser.error(f"--compare: {options.compare} is no program")
    if options.write_docs:
        options.json = options.json or DOCS / "benchmarks.json"
    return options


def measure(options: argparse.Namespace, report: Report) -> list[str]:
    """Returns what went wrong with pscp's own copies."""
    compile_dir(Path(pscp.__file__).parent, quiet=2)  # as pip does; a checkout has no bytecode yet
    runs = options.runs or (QUICK_RUNS if options.quick else RUNS)
    with closing(Stock()) as stock, tempfile.TemporaryDirectory(prefix="pscp-bench-") as state:
        only, before = tuple(options.tool), str(options.compare or "")
        bench = Bench(report, stock, runs, options.quick, options.scale, only, before, state)
        for bench.regime in options.regime or (QUICK if options.quick else REGIMES):
            name = bench.regime
            print(f"{name}: {REGIMES[name].about}", file=sys.stderr)
            try:
                for contest in REGIMES[name].contests(bench):
                    compete(bench, contest)
            except LeftOut as reason:
                report.left_out[name] = str(reason)
                print(f"  left out: {reason}", file=sys.stderr)
            stock.discard()
    return bench.wrong


def finish(options: argparse.Namespace, report: Report, older: Report | None) -> None:
    """Also after Ctrl-C: what was measured is worth showing."""
    report.cases = [case for case in report.cases if any(row.samples for row in case.rows)]
    measured = {case.regime for case in report.cases}
    said = f"{report.machine['date']}, {report.machine['pscp']}"
    report.measured = dict.fromkeys(measured, said)
    if older is not None:
        report.keep_from(older, measured)
    print("\n".join(for_terminal(report, list(measured))))
    if options.json:
        report.save(options.json)
    if options.write_docs:
        write_docs(report)


def write_docs(report: Report) -> None:
    (DOCS / "plots").mkdir(parents=True, exist_ok=True)
    plots = dict(draw(report))
    for name, svg in plots.items():
        (DOCS / "plots" / f"{name}.svg").write_text(svg)
    (DOCS / "benchmarks.md").write_text("\n".join(for_docs(report, list(plots))) + "\n")


def machine() -> dict[str, str]:
    model = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cpu = model[1] if model else platform.machine()
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "system": f"{platform.system()} {platform.release()}, {os.cpu_count()} CPUs, {cpu}",
        "Python": platform.python_version(),
    }
    for name, argv in VERSIONS.items():
        try:
            done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        except OSError:
            continue
        found[name] = (done.stdout or done.stderr).strip().splitlines()[0]
    return found


if __name__ == "__main__":
    sys.exit(main())

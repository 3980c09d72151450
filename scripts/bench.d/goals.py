"""What pscp must reach, and whether it did: ratios within one run of the benchmark.

Not here: how a ratio is taken (results.py). Read next: tables.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from delta import RSYNC_IN_PLACE, WHOLE
from fan import own_cpu_of_four, own_cpu_of_four_plain
from regimes import AS_MANY, AS_MANY_BBR, BBR, FIXED, NO_LOSS, UNKNOWN
from results import Case, Report
from tools import (
    CAT_SSH,
    IPERF,
    ONE_ASYNCSSH,
    ONE_IPERF,
    OVER_SFTP,
    OVER_SFTP_8,
    PIPE_TOOL,
    PSCP_HELP,
    RCLONE,
    RSYNC,
    SCP,
    SCP_AES,
    SFTP_AES,
    TWO_SSH,
)
from warm import KEPT_RSYNC, TINY, WARM, round_trips

Value = Callable[[Case, Report], float | None]
SAME = 0.95  # as fast, as far as a noisy machine can tell


@dataclass(frozen=True)
class Goal:
    regime: str
    kind: str
    text: str
    bound: float
    value: Value
    at_most: bool = False  # else at least


@dataclass(frozen=True)
class Verdict:
    title: str
    text: str
    bound: str
    value: float
    met: bool
    quick: bool


def against(*others: str, tool: str = "pscp") -> Value:
    """The ratio to the best of these."""

    def value(case: Case, report: Report) -> float | None:
        best = case.best(others)
        return case.ratio(tool, best) if best else None

    return value


def own_cpu(case: Case, report: Report) -> float | None:
    row = case.row("pscp")
    return row.own_cpu_s_per_gib if row else None


def slower_than_scp(case: Case, report: Report) -> float | None:
    return case.ratio(SCP.name, "pscp")


def help_s(case: Case, report: Report) -> float | None:
    row = case.row(PSCP_HELP.name)
    return row.median_s if row else None


def unknown_s(case: Case, report: Report) -> float | None:
    row = case.row(UNKNOWN.name)
    return row.median_s if row else None


def against_fewer_files(case: Case, report: Report) -> float | None:
    """The rate against that of the smaller tree, in the same direction."""
    way = case.title.split(", ")[1]
    for other in report.cases:
        if (other.regime, other.kind) == (case.regime, "tree") and way in other.title:
            mine, theirs = case.rate("pscp"), other.rate("pscp")
            return mine / theirs if mine and theirs else None
    return None


FIXED_ROWS = tuple(f"pscp -c {n}" for n in FIXED)
FIXED_KINDS = (
    "loopback", "wan-10", "wan-100", "wan-240", "wan-loss", "small", "mixed", "slowcore",
)  # fmt: skip

GOALS = (
    Goal(
        "loopback", "file", "against the best of scp aes, rsync, rclone", 1.15,
        against(SCP_AES.name, RSYNC.name, RCLONE.name),
    ),
    Goal("loopback", "file", "of two bare ssh side by side", 0.85, against(TWO_SSH.name)),
    Goal("loopback", "file", "CPU-seconds a GiB of pscp itself", 0.7, own_cpu, at_most=True),
    Goal("wan-10", "file", "of iperf3", 0.93, against(IPERF.name)),
    Goal("wan-100", "file", "of iperf3", 0.85, against(IPERF.name)),
    Goal("wan-100", "file", "times scp", 6.0, against(SCP.name)),
    Goal("wan-100", "large file", "of iperf3", 0.93, against(IPERF.name)),
    Goal("wan-240", "file", "of iperf3", 0.75, against(IPERF.name)),
    Goal("wan-loss", "file", "of iperf3 with as many streams", 1.0, against(AS_MANY)),
    Goal(
        "wan-loss", "file", "with bbr, of iperf3 bbr with as many streams", 1.0,
        against(AS_MANY_BBR, tool=BBR.name),
    ),
    Goal(
        "wan-loss", "file", "with bbr, of the rate without loss", 0.8,
        against(NO_LOSS, tool=BBR.name),
    ),
    Goal("loss", "file", "seconds of a push to an unknown host", 9.0, unknown_s, at_most=True),
    Goal("small", "tree", "times rsync -a", 1.4, against(RSYNC.name)),
    Goal("small-loopback", "tree", "times rsync -a", 1.2, against(RSYNC.name)),
    Goal("small-loopback", "large tree", "of its rate for a tenth", SAME, against_fewer_files),
    Goal("mixed", "tree", "of iperf3", 0.75, against(IPERF.name)),
    Goal(
        "slowcore", "file", "-c 8, times -c 1", 6.0, against("pscp -c 1", tool="pscp -c 8"),
    ),
    Goal("slowcore", "file", "-c 8, times scp", 8.0, against(SCP.name, tool="pscp -c 8")),
    Goal("slowcore", "file", "auto, times scp", 8.0, against(SCP.name)),
    Goal("stream", "wan-100", "of iperf3", 0.85, against(IPERF.name, tool=PIPE_TOOL.name)),
    Goal("stream", "wan-100", "times cat | ssh", 5.0, against(CAT_SSH.name, tool=PIPE_TOOL.name)),
    Goal("stream", "loopback", "of a file copy", 0.9, against("pscp", tool=PIPE_TOOL.name)),
    Goal("sftp", "wan-100", "of iperf3", 0.75, against(IPERF.name, tool=OVER_SFTP_8.name)),
    Goal("sftp", "tree", "times scp -r", 15.0, against(SCP.name, tool=OVER_SFTP.name)),
    Goal("sftp", "loopback", "of sftp aes", 1.0, against(SFTP_AES.name, tool=OVER_SFTP.name)),
    Goal("window", "file", "of iperf3", 0.8, against(ONE_IPERF.name, tool=ONE_ASYNCSSH.name)),
    Goal("window", "file", "times ssh", 4.0, against(CAT_SSH.name, tool=ONE_ASYNCSSH.name)),
    Goal("tiny", "file", "times scp's time", 1.25, slower_than_scp, at_most=True),
    Goal("tiny", "file", "seconds for pscp --help", 0.15, help_s, at_most=True),
    Goal("warm", TINY, "round trips of a second copy", 6.5, round_trips, at_most=True),
    Goal("warm", "file", "of iperf3", 0.9, against(IPERF.name, tool=WARM.name)),
    Goal("warm", "tree", "times rsync, ControlMaster", 1.6, against(KEPT_RSYNC, tool=WARM.name)),
    Goal("delta", "file", "times copying all of it", 5.0, against(WHOLE.name)),
    Goal("fan-out", "file", "own CPU, times one copy's", 1.3, own_cpu_of_four, at_most=True),
    Goal(
        "fan-out", "file", "own CPU over --plane plain, times one copy's", 1.3,
        own_cpu_of_four_plain, at_most=True,
    ),
    Goal("unchanged", "0 ms", "of rsync", 0.67, against(RSYNC.name)),
    Goal("unchanged", "50 ms", "of rsync", SAME, against(RSYNC.name)),
    Goal("delta", "file", "of rsync --inplace", SAME, against(RSYNC_IN_PLACE.name)),
    *(
        Goal("fixed", kind, "auto, of the best fixed -c", 0.9, against(*FIXED_ROWS))
        for kind in FIXED_KINDS
    ),
)  # fmt: skip


def verdicts(report: Report) -> Iterator[Verdict]:
    """One for each goal and case that was measured."""
    for goal in GOALS:
        for case in report.cases:
            if (case.regime, case.kind) != (goal.regime, goal.kind):
                continue
            value = goal.value(case, report)
            if value is not None:
                met = value <= goal.bound if goal.at_most else value >= goal.bound
                bound = f"{'<=' if goal.at_most else '>='} {goal.bound:g}"
                yield Verdict(case.title, goal.text, bound, value, met, case.quick)

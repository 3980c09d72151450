"""What pscp must reach, and whether it did: ratios within one run of the benchmark.

Not here: how a ratio is taken (results.py). Read next: tables.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tools
from regimes import KEPT_RSYNC, NO_LOSS, TINY, WARM_DELAYS_MS, WINDOWED
from results import Case, Report
from serving import served
from stars import ALL_LINKS, ALONE, CLUSTERED
from tools import CAT_SSH, IPERF, OWN, RSYNC, SCP, WARM, Tool

Value = Callable[[Case, Report], float | None]
SAME = 0.95  # as fast, as far as a noisy machine can tell


@dataclass(frozen=True)
class Goal:
    regime: str
    kind: str  # "" is any
    text: str
    bound: float
    value: Value
    at_most: bool = False  # else at least


@dataclass(frozen=True)
class Verdict:
    goal: Goal
    case: Case
    value: float

    @property
    def bound(self) -> str:
        return f"{'<=' if self.goal.at_most else '>='} {self.goal.bound:g}"

    @property
    def is_met(self) -> bool:
        goal = self.goal
        return self.value <= goal.bound if goal.at_most else self.value >= goal.bound


def against(*others: Tool | str, tool: Tool = OWN) -> Value:
    """The ratio to the best of these."""
    names = [other if isinstance(other, str) else other.name for other in others]

    def value(case: Case, report: Report) -> float | None:
        best = case.best(names)
        return case.ratio(tool.name, best) if best else None

    return value


def after_login(tool: Tool) -> Value:
    """What one login and then iperf3 take, by what this tool takes."""

    def value(case: Case, report: Report) -> float | None:
        times_s = [seconds(each)(case, report) for each in (tools.LOGIN, IPERF, tool)]
        login_s, bytes_s, own_s = times_s
        return (login_s + bytes_s) / own_s if login_s and bytes_s and own_s else None

    return value


def seconds(tool: Tool) -> Value:
    return lambda case, report: row.median_s if (row := case.row(tool.name)) else None


def own_cpu(tool: Tool) -> Value:
    return lambda case, report: row.cpu_s_per_gib() if (row := case.row(tool.name)) else None


def cpu_ratio(tool: Tool, other: Tool) -> Value:
    def value(case: Case, report: Report) -> float | None:
        mine, theirs = (own_cpu(each)(case, report) for each in (tool, other))
        return mine / theirs if mine and theirs else None

    return value


def against_fewer_files(case: Case, report: Report) -> float | None:
    """The rate against that of the smaller tree, in the same direction."""
    for other in report.cases:
        if (other.regime, other.kind, other.way) == (case.regime, "tree", case.way):
            mine, theirs = case.rate("pscp"), other.rate("pscp")
            return mine / theirs if mine and theirs else None
    return None


def round_trips(case: Case, report: Report) -> float | None:
    """How many round trips a warm copy takes: what it takes longer over a longer path."""
    times: dict[float, float] = {}
    for other in report.cases:
        same = (other.regime, other.kind, other.way) == (case.regime, case.kind, case.way)
        if same and (time_s := seconds(WARM)(other, report)):
            times[other.rtt_ms] = time_s
    if len(times) < len(WARM_DELAYS_MS):
        return None
    far_ms, near_ms = WARM_DELAYS_MS
    return (times[far_ms] - times[near_ms]) * 1000 / (far_ms - near_ms)


GOALS = (
    Goal(
        "loopback", "file", "against the best of scp aes, rsync, rclone", 1.15,
        against(tools.SCP_AES, RSYNC, tools.RCLONE),
    ),
    Goal("loopback", "file", "of two bare ssh side by side", 0.85, against(tools.TWO_SSH)),
    Goal("loopback", "file", "CPU-seconds a GiB of pscp itself", 0.7, own_cpu(OWN), at_most=True),
    Goal("wan-10", "file", "of iperf3", 0.93, against(IPERF)),
    Goal("wan-100", "file", "of iperf3", 0.85, against(IPERF)),
    Goal("wan-100", "file", "times scp", 6.0, against(SCP)),
    Goal("wan-100", "large file", "of iperf3", 0.93, against(IPERF)),
    Goal("wan-240", "file", "of iperf3", 0.75, against(IPERF)),
    Goal("wan-loss", "file", "of iperf3 with as many streams", 1.0, against(tools.AS_MANY)),
    Goal(
        "wan-loss", "file", "with bbr, of iperf3 bbr with as many streams", 1.0,
        against(tools.AS_MANY_BBR, tool=tools.BBR),
    ),
    Goal(
        "wan-loss", "file", "with bbr, of the rate without loss", 0.8,
        against(NO_LOSS, tool=tools.BBR),
    ),
    Goal(
        "loss", "file", "seconds of a push to an unknown host", 9.0,
        seconds(tools.UNKNOWN), at_most=True,
    ),
    *(
        # 7.0, 6.6, 11.5 and 11.3 s where a login and iperf3 took 6.4 s, and 11.2 s at 240 ms.
        Goal("first", f"wan-{rtt_ms}", f"{to}, of one login and iperf3", ratio, after_login(tool))
        for rtt_ms, to, ratio, tool in (
            (100, "unknown host", 0.91, tools.UNKNOWN),
            (100, "known host", 0.97, OWN),
            (240, "unknown host", 0.97, tools.UNKNOWN),
            (240, "--plane tls", 0.99, tools.TLS),
        )
    ),
    Goal("small", "tree", "times rsync -a", 1.4, against(RSYNC)),
    Goal("small-loopback", "tree", "times rsync -a", 1.2, against(RSYNC)),
    Goal("small-loopback", "large tree", "of its rate for a tenth", SAME, against_fewer_files),
    Goal("mixed", "tree", "of iperf3", 0.75, against(IPERF)),
    Goal("slowcore", "file", "-c 8, times -c 1", 6.0, against(tools.OWN_1, tool=tools.OWN_8)),
    Goal("slowcore", "file", "-c 8, times scp", 8.0, against(SCP, tool=tools.OWN_8)),
    Goal("slowcore", "file", "auto, times scp", 8.0, against(SCP)),
    Goal("stream", "wan-100", "of iperf3", 0.85, against(IPERF, tool=tools.PIPE_TOOL)),
    Goal("stream", "wan-100", "times cat | ssh", 5.0, against(CAT_SSH, tool=tools.PIPE_TOOL)),
    Goal("stream", "loopback", "of a file copy", 0.9, against(OWN, tool=tools.PIPE_TOOL)),
    Goal("sftp", "wan-100", "of iperf3", 0.75, against(IPERF, tool=tools.OVER_SFTP_8)),
    Goal("sftp", "tree", "times scp -r", 15.0, against(SCP, tool=tools.OVER_SFTP)),
    Goal("sftp", "loopback", "of sftp aes", 1.0, against(tools.SFTP_AES, tool=tools.OVER_SFTP)),
    Goal("window", "file", "of iperf3", 0.8, against(tools.ONE_IPERF, tool=tools.ONE_ASYNCSSH)),
    Goal("window", "file", "times ssh", 4.0, against(CAT_SSH, tool=tools.ONE_ASYNCSSH)),
    Goal("tiny", "file", "times scp's time", 1.25, against(OWN, tool=SCP), at_most=True),
    Goal(
        "tiny", "file", "seconds for pscp --help", 0.15, seconds(tools.PSCP_HELP), at_most=True
    ),
    Goal("warm", TINY, "round trips of a second copy", 6.5, round_trips, at_most=True),
    Goal("warm", "file", "of iperf3", 0.9, against(IPERF, tool=WARM)),
    Goal("warm", "tree", "times rsync, ControlMaster", 1.6, against(KEPT_RSYNC, tool=WARM)),
    Goal("delta", "file", "times copying all of it", 5.0, against(tools.WHOLE)),
    Goal("delta", "file", "of rsync --inplace", SAME, against(tools.RSYNC_IN_PLACE)),
    Goal(
        "fan-out", "file", "own CPU, times one copy's", 1.3, cpu_ratio(tools.FOUR, OWN),
        at_most=True,
    ),
    Goal(
        "fan-out", "file", "own CPU over --plane plain, times one copy's", 1.3,
        cpu_ratio(tools.FOUR_PLAIN, tools.PLAIN), at_most=True,
    ),
    Goal("cluster", "", "one host, of its link", 0.9, against(ALL_LINKS, tool=ALONE)),
    Goal("cluster", "", "--cluster, of all links", 0.85, against(ALL_LINKS, tool=CLUSTERED)),
    Goal("unchanged", "0 ms", "of rsync", 0.83, against(RSYNC)),
    Goal("unchanged", "50 ms", "of rsync", SAME, against(RSYNC)),
    Goal("fixed", "", "auto, of the best fixed -c", 0.9, against(*tools.OWN_FIXED)),
)  # fmt: skip


TO_SERVE = [
    Goal(
        "serve", "wan-100", f"{tool.name}, times to sshd", 2.0 if tool in WINDOWED else SAME,
        against(tool, tool=served(tool)),
    )
    for tool in tools.UPLOADERS
] + [
    Goal("serve", "loopback", f"{tool.name}, of to sshd", SAME, against(tool, tool=served(tool)))
    for tool in tools.UPLOADERS
]  # fmt: skip


def verdicts(report: Report) -> Iterator[Verdict]:
    """One for each goal and case that was measured."""
    for goal in (*GOALS, *TO_SERVE):
        for case in report.cases:
            if case.regime == goal.regime and goal.kind in ("", case.kind):
                value = goal.value(case, report)
                if value is not None:
                    yield Verdict(goal, case, value)

"""A job of pscp-run, as it was written in jobs.toml, checked and with its defaults.

Not here: how jobs.toml is read and checked (config.py), how a job is run (../runner.py).
Read next: ../reports/outcome.py.
"""

from __future__ import annotations

import glob
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from pscp.ground.errors import UsageError
from pscp.ground.locations import Location, parse_location
from pscp.options.options import Options
from pscp.transfer.terms.moves import Moves
from pscp.zfs.settings import Settings

IF_RUNNING = ("skip", "wait", "fail")
_LABEL_MAX = 100  # characters of a destination in a file's name, which may have 255 bytes


@dataclass(frozen=True)
class Span:
    """A time of day, every day, with the rate that holds from its begin until before its end."""

    begins: str  # local time, such as "22:00"
    ends: str  # "24:00" at most; less than `begins`: over midnight
    kbit_s: int | None  # None: no limit

    def covers(self, time_of_day: str) -> bool:
        """Return whether it holds at a time such as "22:00"."""
        is_begun, is_over = self.begins <= time_of_day, self.ends <= time_of_day
        return is_begun and not is_over if self.begins < self.ends else is_begun or not is_over


@dataclass(frozen=True)
class HostOptions:
    """The options of a copy, and the words of a command line that say the same."""

    options: Options
    words: tuple[str, ...] = ()  # of pscp, or of pscp-zfs; none of them is a value alone


@dataclass(frozen=True)
class Job:
    """A job: what is copied where, when, and what follows. Times are in seconds."""

    name: str
    destinations: tuple[str, ...]  # as a user of pscp types them
    # Where it comes from: one of these four.
    sources: tuple[str, ...] = ()  # paths and patterns here, or HOST:PATHs
    sources_from: str | None = None  # a file that lists sources, a line each
    sources_command: tuple[str, ...] = ()  # a command that prints them; run without a shell
    folder: str = ""  # where the names that are listed begin, and where the command is run
    datasets: tuple[str, ...] = ()  # ZFS, for pscp-zfs
    options: Options = field(default_factory=Options)  # of a copy whose host has none of its own
    words: tuple[str, ...] = ()  # as those of HostOptions
    by_host: dict[str, HostOptions] = field(
        default_factory=dict
    )  # hosts that jobs.toml has a table of
    settings: Settings = field(default_factory=Settings)  # of replications
    # When, and for how long.
    limit: tuple[Span, ...] = ()  # outside of them options.limit_kbit_s holds
    max_duration_s: int | None = None
    retry_for_s: int = 0  # what may succeed later is tried again for so long, with growing pauses
    min_age_s: int = 0  # a file that changed since is left for the next run
    settled_for_s: int = 0  # so is one that was not seen unchanged for so long
    max_hosts: int | None = None  # destinations at once; None: all
    depends_on: tuple[str, ...] = ()  # jobs that have to be done, in the same run, first
    if_running: str = "fail"  # one of IF_RUNNING
    # What follows. A text is run by /bin/sh, a list as it is.
    after: str = "keep"  # or "remove", "move"
    move_to: str | None = None  # the folder of after = "move DIR"
    before: str | tuple[str, ...] | None = None
    after_success: str | tuple[str, ...] | None = None
    after_failure: str | tuple[str, ...] | None = None
    # What is told.
    report: tuple[tuple[str, str], ...] = ()  # ("json" | "text" | "html", file)
    metrics: str | None = None  # a file for node_exporter's textfile collector
    ping: str | None = None  # a URL, in the manner of healthchecks
    keep_history_s: int = 365 * 24 * 3600

    def place(self, destination: str) -> str:
        """Return the destination of a copy; where the sources may be any number, a folder.

        Else a night with one of them would make a file of the name that the folder was to have.
        """
        is_list = not self.sources or any(map(glob.has_magic, self.sources))
        ends = destination.endswith(("/", ":"))
        return f"{destination}/" if is_list and not ends else destination

    def chosen(self, destination: str) -> HostOptions:
        """Return the options of the copy to this destination, one of the job's."""
        places = map(parse_location, (destination, *(self.sources or self.datasets)[:1]))
        hosts = (host_key(place) for place in places if place.host is not None)
        return self.by_host.get(next(hosts, ""), HostOptions(self.options, self.words))

    def limit_now(self) -> int | None:
        """Return the kbit/s that hold now; None: no limit. The first span wins.

        The local clock's hands decide: in the night in which they are set back an hour, the minutes
        between come twice, and in the one in which they are set forth, not at all.
        """
        now = time.strftime("%H:%M")
        found = (span.kbit_s for span in self.limit if span.covers(now))
        return next(found, self.options.limit_kbit_s)

    def manifest_of(self, destination: str, run: str = "", started_s: float = 0.0) -> str | None:
        """Return where the manifest of this destination goes, if there is to be one.

        In its name {destination}, {date} and {run} stand for those.
        """
        said = {
            "destination": re.sub(r"[^A-Za-z0-9@.-]+", "_", destination).strip("_.-")[:_LABEL_MAX],
            "date": time.strftime("%Y-%m-%d", time.localtime(started_s)),
            "run": run,
        }
        return self.options.manifest and re.sub(
            r"\{(destination|date|run)\}", lambda found: said[found[1]], self.options.manifest
        )

    def replications(self, destination: str) -> tuple[tuple[str, str], ...]:
        """Return each dataset and what it becomes; below a destination with a "/" at its end."""
        is_below = destination.endswith("/")
        names = (parse_location(dataset).path.rpartition("/")[2] for dataset in self.datasets)
        return tuple(
            (dataset, destination + name if is_below else destination)
            for dataset, name in zip(self.datasets, names, strict=True)
        )


def check_after(job: Job, sources: Iterable[Location]) -> None:
    """Raise UsageError where what is to become of these sources cannot be done to them."""
    if job.after == "keep" or not any(each.is_remote for each in sources):
        return
    if job.after == "move":
        hint = 'after = "remove" removes them there, or after-success moves them by ssh'
        raise UsageError(f'after = "{job.after}" is for sources on this machine', hint)
    if len(job.destinations) > 1 or parse_location(job.destinations[0]).is_remote:
        hint = "copy them here with it, and on from here with a job that depends on that one"
        what = 'after = "remove" of sources at a host needs one destination, on this machine'
        raise UsageError(what, hint)


def moves_of(job: Job, found: Iterable[Location]) -> Moves | None:
    """Return what moves these sources of a job, None where nothing does, or the copy itself."""
    if job.after == "keep" or any(each.is_remote for each in found):
        return None
    return Moves([job.place(each) for each in job.destinations], job.move_to)


def host_key(place: Location) -> str:
    """Return what tells the host of a location from others, or its hosts; "" for this machine."""
    return ",".join(str(each.host) for each in place.each_host if each.host is not None)

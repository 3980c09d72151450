"""Makes a Job of its table in jobs.toml, and says what in it does not go together.

Not here: values that are wrong alone (schema.py), other tables and jobs (config.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from pscp.calls.call_arguments import fitted
from pscp.endpoint.frames.failures import Refusal
from pscp.endpoint.reading.source import Top, expand
from pscp.ground.errors import UsageError
from pscp.ground.locations import Location, check_beside, check_direction, parse_location
from pscp.jobs.toml import schema
from pscp.jobs.toml.job import HostOptions, Job, check_after, host_key, moves_of
from pscp.options.arguments import with_files
from pscp.options.keywords import as_typed
from pscp.options.option_pairs import check_no_cluster
from pscp.options.options import Options
from pscp.toml.positions import Place
from pscp.toml.reading import Mistakes
from pscp.toml.values import Seconds, in_words, whole
from pscp.transfer.terms.copy_terms import JobTerms
from pscp.zfs.names import check_ends, parse_place
from pscp.zfs.settings import Settings

Words = dict[str, tuple[str, ...]]  # of options, by their names

_KINDS_OF_SOURCES = ("sources", "sources-from", "sources-command", "datasets")
_MADE_HERE = ("destinations", "sources", "sources-command", "limit", "after", "report")
# The other keys are fields of Job; 0 is the field's default.
_FIELDS = {
    key: key.replace("-", "_") + ("_s" if each.kind is Seconds else "")
    for key, each in schema.OWN.items()
    if key not in _MADE_HERE
}
_RIVALS = {"ipv4": "ipv6", "ipv6": "ipv4"}
_LISTED = parse_location("host:")  # what a list has, where it goes to a folder of this machine
_SETTINGS = {each.name for each in fields(Settings)}


class Table(NamedTuple):
    """A table of the file."""

    place: Place
    values: Mapping[str, Any]  # those that are sound, in the order of the file


@dataclass(frozen=True)
class JobReader:
    """Reads one job."""

    own: Table
    defaults: Table
    hosts: Mapping[str, Table]
    folder: str  # of the file
    wrong: Mistakes

    def job(self) -> Job:
        """Return the job; where a mistake was noted, it is not to be used."""
        self._check_keys()
        given = self._given()
        chosen, settings = self._chosen()
        inside = os.path.join(self.folder, ".") if chosen.options.relative else self.folder
        command = given.get("sources-command", ())
        after, move_to = given.get("after", ("keep", None))
        name = str(self.own.place[-1])
        reports = tuple((form, _report(form, file, name)) for form, file in given.get("report", ()))
        job = Job(
            name=name,
            destinations=self._whole("destinations", self.folder),
            sources=self._whole("sources", inside),  # -R keeps what is typed, and not all before it
            sources_command=("/bin/sh", "-c", command) if isinstance(command, str) else command,
            folder=inside,
            options=chosen.options,
            words=chosen.words,
            settings=settings,
            limit=given.get("limit", ((), None))[0],
            after=after,
            move_to=move_to,
            report=reports,
            **{field: given[key] for key, field in _FIELDS.items() if given.get(key)},
        )
        ends = (*job.sources, *job.datasets, *job.destinations)
        places = {host_key(parse_location(text)) for text in ends}
        is_known = job.sources or job.datasets  # else a list may name any host
        hosts = {key_of(name, table): name for name, table in self.hosts.items()}
        known = {key: name for key, name in hosts.items() if key in places or not is_known}
        by_host = {key: self._chosen(self.hosts[name])[0] for key, name in known.items()}
        self._check_cluster(job, [each.options for each in by_host.values()])
        job = replace(job, by_host=by_host)
        self._check_ends(job)
        return job

    @property
    def _has_datasets(self) -> bool:
        return self._says("datasets")

    def _says(self, key: str, *table: str) -> bool:
        """Return whether the job's table, or this one, has a key, be it sound or not."""
        return (*(table or self.own.place), key) in self.wrong.lines

    def _given(self, *host: Table) -> dict[str, Any]:
        """Return what holds for the job, at a host or where no host has said anything."""
        found: dict[str, Any] = {}
        for table in (self.own, *host, self.defaults):
            nearer = dict(found)
            for key, value in table.values.items():
                is_overruled = nearer.get(_RIVALS.get(key, ""))
                if schema.is_for(key, of_datasets=self._has_datasets) and not is_overruled:
                    found.setdefault(key, value)
        return found

    def _wrong(self, key: str, text: str, table: Table | None = None) -> None:
        place = (table or self.own).place
        self.wrong.add((*place, key), f"{'.'.join(map(str, place))}: {text}")

    def _check_keys(self) -> None:
        said = [key for key in _KINDS_OF_SOURCES if self._says(key)]
        if not said:
            self._wrong("", f"has nothing to copy: one of {', '.join(_KINDS_OF_SOURCES)} says what")
        for key in said[1:]:
            self._wrong(key, f"{said[0]} and {key} do not go together: make two jobs")
        if not (self._says("destinations") or self._says("destinations", "defaults")):
            self._wrong("", "has no destinations")
        one, other = ("datasets", "files") if self._has_datasets else ("files", "datasets")
        for key in self.own.values:
            if not schema.is_for(key, of_datasets=self._has_datasets):
                self._wrong(key, f"{key} is for {other}, and this job has {one}")

    # --- what is copied, and where to

    def _whole(self, key: str, folder: str) -> tuple[str, ...]:
        """Return locations with whole paths of this machine; datasets have none."""
        return tuple(
            self._at_hosts(text)
            if self._has_datasets or parse_location(text).is_remote
            else whole(text, folder)
            for text in self._given().get(key, ())
        )

    def _at_hosts(self, text: str) -> str:
        """Return a location with the hosts that its host's name stands for."""
        place = parse_location(text)
        table = self.hosts.get(place.host or "")
        if table is None or "hosts" not in table.values:
            return text
        user = "" if place.user is None else f"{place.user}@"
        names = (user + name for name in table.values["hosts"])
        return f"{','.join(names)}:{place.path}"

    def _check_ends(self, job: Job) -> None:
        """Say what no run of pscp could copy."""
        sources = [parse_location(text) for text in job.sources]
        places = [parse_location(each) for each in job.destinations]
        if not (sources or all(each.is_remote for each in places)):
            sources = [_LISTED]
        try:
            for text in (*job.sources[:1], *job.datasets[:1], *job.destinations):
                self._check_hosts(job, parse_location(text))
            for destination in job.destinations:
                if sources and not job.datasets:
                    check_direction(sources, parse_location(destination))
                pairs = job.replications(destination)
                for dataset, place in pairs:
                    check_ends(parse_place(dataset), parse_place(place))
                if len({place for _, place in pairs}) < len(pairs):
                    hint = 'with a "/" behind it they go below it, by their last names'
                    raise UsageError(f"several datasets would become {pairs[0][1]}", hint)
            options = job.options
            check_beside(places, mirrors=options.delete, backup_dir=options.backup_dir)
        except UsageError as error:
            self._wrong("destinations", schema.as_keys(in_words(error)))
        else:
            self._check_copies(job, sources)
        self._check_manifests(job)

    def _check_hosts(self, job: Job, place: Location) -> None:
        """Raise UsageError where several hosts cannot be what this job wants of one."""
        if place.others and job.datasets:
            raise UsageError(f"{place.text}: a dataset is at one host")

    def _check_copies(self, job: Job, sources: list[Location]) -> None:
        """Say what the copies would refuse, whatever is at their ends."""
        if job.datasets or not job.destinations:
            return
        try:
            check_after(job, sources)
            moves = moves_of(job, sources)
            if moves is not None:
                paths = dict.fromkeys(each.path for each in sources)
                with contextlib.suppress(OSError):  # the run tells what cannot be looked at
                    moves.check_apart([_top(path) for path in paths])
        except UsageError as error:
            self._wrong("after", schema.as_keys(in_words(error)))
            return
        for destination in job.destinations:
            its = replace(job.chosen(destination).options, remove_source_files=job.after != "keep")
            place = parse_location(destination)
            try:
                fitted(its, JobTerms(moves=moves), sources, place)
            except UsageError as error:
                ends = {host_key(each) for each in (place, *sources[:1])}
                hosts = [each for name, each in self.hosts.items() if key_of(name, each) in ends]
                self._wrong_together(error, self._given(*hosts), hosts, or_else="destinations")

    def _check_cluster(self, job: Job, of_hosts: list[Options]) -> None:
        try:
            for options in (job.options, *of_hosts) if len(job.destinations) > 1 else ():
                check_no_cluster(options, "several destinations: make a job for each")
        except UsageError as error:
            self._wrong("destinations", schema.as_keys(error.message))

    def _check_manifests(self, job: Job) -> None:
        manifests = {job.manifest_of(each) for each in job.destinations}
        if job.options.manifest is not None and len(manifests) < len(job.destinations):
            text = "each destination has a manifest of its own: put {destination} into its name"
            self._wrong("manifest", text)

    # --- options

    def _chosen(self, *host: Table) -> tuple[HostOptions, Settings]:
        """Return the options at a host, with the settings of replications; say what is wrong.

        What the job says holds before what is said for the host, and that before [defaults].
        """
        given = self._given(*host)
        words: Words = {key: each for key, each in given.items() if key in schema.OPTIONS}
        if (kbit_s := given.get("limit", ((), None))[1]) is not None:
            words["limit"] = (f"--limit={kbit_s}",)
        words.setdefault("batch", ("--batch",))
        try:
            with as_typed():
                return self._options(sum(words.values(), ()))
        except UsageError as error:
            self._wrong_together(error, words, host)
            return HostOptions(Options()), Settings()

    def _wrong_together(
        self, error: UsageError, keys: Container[str], hosts: Iterable[Table], or_else: str = ""
    ) -> None:
        """Say what is wrong where the first of these keys stands that the error names."""
        cause = next((key for key in schema.named_in(error) if key in keys), or_else)
        tables = (self.own, *hosts, self.defaults)
        table = next((each for each in tables if cause in each.values), self.own)
        self._wrong(cause, schema.as_keys(in_words(error)), table)

    def _options(self, words: tuple[str, ...]) -> tuple[HostOptions, Settings]:
        if "--ipv4" in words and "--ipv6" in words:
            raise UsageError("--ipv4 and --ipv6 contradict each other")
        given, _ = schema.PARSERS[self._has_datasets].read(words)
        names = _SETTINGS & given.keys() if self._has_datasets else ()
        settings = Settings(**{name: given.pop(name) for name in names})
        if "filters" in given:
            from0 = given.get("from0", False)
            given["filters"] = with_files(given["filters"], from0=from0, stdin_is_taken=True)
        options = Options(**given)
        # As the copies of a run have them: not everything goes with that.
        of_job = self._given()
        replace(options, min_age_s=of_job.get("min-age") or None)
        if of_job.get("after", ("keep",))[0] != "keep":
            replace(options, remove_source_files=True)
        return HostOptions(options, words), settings


def _top(path: str) -> Top:
    """Return what a source here stands for, as far as that is sure: a pattern stays one."""
    try:
        return expand(path, False)[0]
    except Refusal:
        return Top("*", path, False)


def _report(form: str, file: str, job: str) -> str:
    """Return the file of a job's report; in a folder each job has one of its own."""
    file = file.replace("{job}", job)
    is_folder = file.endswith("/") or os.path.isdir(file)
    return os.path.join(file, f"{job}.{'txt' if form == 'text' else form}") if is_folder else file


def key_of(name: str, table: Table) -> str:
    """Return what host_key() is of locations at the host of [host.NAME]."""
    return ",".join(table.values.get("hosts", ())) or name

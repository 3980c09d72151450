"""Makes a Job of its table in jobs.toml, and says what in it does not go together.

Not here: values that are wrong alone (kinds.py), other tables and jobs (config.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pscp.cli.filter_files import with_files
from pscp.errors import UsageError
from pscp.jobs import schema
from pscp.jobs.job import Chosen, Job
from pscp.jobs.kinds import SECONDS, in_words, whole
from pscp.jobs.positions import Place
from pscp.locations import check_direction, parse_location
from pscp.options import Options
from pscp.zfs.names import check_ends, parse_place
from pscp.zfs.settings import Settings

Words = dict[str, tuple[str, ...]]  # of options, by their names

_KINDS_OF_SOURCES = ("sources", "sources-from", "sources-command", "datasets")
_FOR_FILES = ("min-age", "settled-for", "after", "manifest", "sign")
_MADE_HERE = ("destinations", "sources", "sources-command", "limit", "after")
# The other keys are fields of Job; 0 and nothing are the field's default.
_FIELDS = {
    key: key.replace("-", "_") + ("_s" if each.kind is SECONDS else "")
    for key, each in schema.OWN.items()
    if key not in _MADE_HERE
}
_SETTINGS = {each.name for each in fields(Settings)}


@dataclass(frozen=True)
class Table:
    """A table of the file."""

    place: Place
    values: Mapping[str, Any]  # those that are sound, in the order of the file
    said: frozenset[str]  # every key

    @property
    def name(self) -> str:
        return ".".join(map(str, self.place))


class JobReader:
    """Reads one job; `say` is told each mistake, with its place."""

    def __init__(
        self,
        own: Table,
        defaults: Table,
        hosts: Mapping[str, Table],
        folder: str,
        say: Callable[[Place, str], None],
    ) -> None:
        self._own, self._defaults, self._hosts = own, defaults, hosts
        self._folder, self._say = folder, say
        self._has_datasets = "datasets" in own.said
        given = {**defaults.values, **own.values}
        left_out = _FOR_FILES if self._has_datasets else ()
        self._values = {key: given[key] for key in schema.OWN if key in given.keys() - left_out}

    def job(self) -> Job:
        """Return the job; where something was said to be wrong, it is not to be used."""
        self._check_keys()
        given = self._values
        chosen, settings = self._chosen()
        inside = os.path.join(self._folder, ".") if chosen.options.relative else self._folder
        command, limit = given.get("sources-command", ()), given.get("limit")
        after, move_to = given.get("after", ("keep", None))
        job = Job(
            name=str(self._own.place[-1]),
            destinations=self._whole("destinations", self._folder),
            sources=self._whole("sources", inside),  # -R keeps what is typed, and not all before it
            sources_command=("/bin/sh", "-c", command) if isinstance(command, str) else command,
            options=chosen.options,
            words=chosen.words,
            dataset_options=settings,
            limit=limit.spans if limit else (),
            after=after,
            move_to=move_to,
            **{field: given[key] for key, field in _FIELDS.items() if given.get(key)},
        )
        self._check_ends(job)
        places = {parse_location(text).host for text in (*job.sources, *job.destinations)}
        is_known = job.sources or job.datasets  # else a list may name any host
        hosts = [name for name in self._hosts if name in places or not is_known]
        return replace(job, by_host={name: self._chosen(self._hosts[name])[0] for name in hosts})

    def _wrong(self, key: str, text: str) -> None:
        self._say((*self._own.place, key), f"{self._own.name}: {text}")

    def _check_keys(self) -> None:
        own = self._own
        said = [key for key in _KINDS_OF_SOURCES if key in own.said]
        if not said:
            self._wrong("", f"has nothing to copy: one of {', '.join(_KINDS_OF_SOURCES)} says what")
        for key in said[1:]:
            self._wrong(key, f"{said[0]} and {key} do not go together: make two jobs")
        if "destinations" not in own.said | self._defaults.said:
            self._wrong("", "has no destinations")
        if "sign" in own.said and "manifest" not in own.said | self._defaults.said:
            self._wrong("sign", "sign goes with manifest, which it signs")
        for key in own.values:
            is_for_files = key in _FOR_FILES or self._is_for(key, of_datasets=False)
            if self._has_datasets and is_for_files and not self._is_for(key, of_datasets=True):
                self._wrong(key, f"{key} is for files, and this job has datasets")
            elif not self._has_datasets and key in schema.OPTIONS and not is_for_files:
                self._wrong(key, f"{key} is for datasets, and this job has none")

    def _is_for(self, key: str, *, of_datasets: bool) -> bool:
        option = schema.OPTIONS.get(key)
        return option is not None and (option.of_datasets if of_datasets else option.of_files)

    # --- what is copied, and where to

    def _whole(self, key: str, folder: str) -> tuple[str, ...]:
        """Return locations with whole paths of this machine; datasets have none."""
        given = self._values.get(key, ())
        if self._has_datasets:
            return tuple(given)
        return tuple(
            text if parse_location(text).is_remote else whole(text, folder) for text in given
        )

    def _check_ends(self, job: Job) -> None:
        """Say what no run of pscp could copy."""
        sources = [parse_location(text) for text in job.sources]
        try:
            for destination in job.destinations if sources else ():
                check_direction(sources, parse_location(destination))
            for destination in job.destinations:
                pairs = job.replications(destination)
                for dataset, place in pairs:
                    check_ends(parse_place(dataset), parse_place(place))
                if len({place for _, place in pairs}) < len(pairs):
                    hint = 'with a "/" behind it they go below it, by their last names'
                    raise UsageError(f"several datasets would become {pairs[0][1]}", hint)
        except UsageError as error:
            self._wrong("destinations", in_words(error))
        if len({job.manifest_of(each) for each in job.destinations}) < len(job.destinations):
            text = "each destination has a manifest of its own: put {destination} into its name"
            if job.manifest is not None and not self._has_datasets:
                self._wrong("manifest", text)
        if job.after != "keep" and any(each.is_remote for each in sources):
            self._wrong("after", f'after = "{job.after}" is for sources on this machine')

    # --- options

    def _chosen(self, host: Table | None = None) -> tuple[Chosen, dict[str, object]]:
        """Return the options at a host, with the settings of replications; say what is wrong.

        What the job says holds before what is said for the host, and that before [defaults].
        """
        tables = (self._own, *([host] if host else []), self._defaults)
        found = Words()
        for table in tables:
            for key in table.values:
                if self._is_for(key, of_datasets=self._has_datasets):
                    found.setdefault(key, table.values[key])
        found["limit"] = self._values["limit"].words if "limit" in self._values else ()
        found.setdefault("batch", ("--batch",))
        causes: list[str] = []
        while True:
            try:
                options, settings = self._options(found)
            except UsageError as error:
                # What follows from an option that was taken out is no mistake of the user's.
                if any(f"--{cause}" in error.message for cause in causes):
                    return Chosen(Options()), {}
                cause = self._cause(found, error)
                table = next((each for each in tables if cause in each.values), self._own)
                self._say((*table.place, cause), f"{table.name}: {in_words(error)}")
                if not cause:
                    return Chosen(Options()), {}
                causes.append(cause)
                del found[cause]
            else:
                return Chosen(options, tuple(sum(found.values(), ()))), settings

    def _options(self, words: Words) -> tuple[Options, dict[str, object]]:
        flat = sum(words.values(), ())
        if "--ipv4" in flat and "--ipv6" in flat:
            raise UsageError("--ipv4 and --ipv6 contradict each other")
        given, _ = schema.parser(self._has_datasets).read(flat)
        settings = {
            name: given.pop(name) for name in _SETTINGS & given.keys() if self._has_datasets
        }
        Settings(**settings)
        if "filters" in given:
            from0 = given.get("from0", False)
            given["filters"] = with_files(given["filters"], from0=from0, stdin_is_taken=True)
        options = Options(**given)
        replace(options, min_age_s=self._values.get("min-age") or None)
        if self._values.get("after", ("keep",))[0] != "keep":
            replace(options, remove_source_files=True)  # which does not go with everything
        return options, settings

    def _cause(self, words: Words, error: UsageError) -> str:
        """Return the first option without which the error is not raised; "" where none is."""
        for key in sorted(words, key=lambda each: f"--{each}" not in error.message):
            try:
                self._options({each: words[each] for each in words if each != key})
            except UsageError as other:
                if other.message == error.message:
                    continue
            return key
        return ""

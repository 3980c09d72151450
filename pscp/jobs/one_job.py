"""Makes a Job of its table in jobs.toml, and says what in it does not go together.

Not here: values that are wrong alone (kinds.py), other tables and jobs (config.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pscp.cli.filter_files import with_files
from pscp.errors import UsageError
from pscp.jobs import schema
from pscp.jobs.job import Chosen, Job
from pscp.jobs.kinds import SECONDS, Wrong, in_words, whole
from pscp.jobs.positions import Place
from pscp.locations import check_direction, parse_location
from pscp.options import Options
from pscp.zfs.names import check_ends, parse_place
from pscp.zfs.settings import Settings

Words = dict[str, tuple[str, ...]]  # of options, by their names

_KINDS_OF_SOURCES = ("sources", "sources-from", "sources-command", "datasets")
_FOR_FILES = ("min-age", "settled-for", "after", "manifest", "sign")
_NOT_SO = {"destinations", "sources", "sources-command", "limit", "after"}
# Keys whose value is the value of a field of Job; 0, none and nothing are the field's default.
_AS_THEY_ARE = {
    key: key.replace("-", "_") + ("_s" if each.kind is SECONDS else "")
    for key, each in schema.OWN.items()
    if key not in _NOT_SO
}
_SETTINGS = {each.name for each in fields(Settings)}


@dataclass(frozen=True)
class Table:
    """A table of the file."""

    place: Place
    values: Mapping[str, Any]  # those that are sound, in the order of the file
    said: frozenset[str]  # every key

    @property
    def options(self) -> Words:
        """The options as words, each by its name."""
        return {key: words for key, words in self.values.items() if key in schema.OPTIONS}


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
        self._own = own
        self._defaults = defaults
        self._hosts = hosts
        self._folder = folder
        self._say = say
        self._has_datasets = "datasets" in own.said
        left_out = _FOR_FILES if self._has_datasets else ()
        given = {**defaults.values, **own.values}
        self._values = {
            key: given[key] for key in schema.OWN if key in given and key not in left_out
        }

    def job(self) -> Job:
        """Return the job; where something was said to be wrong, it is not to be used."""
        self._check_keys()
        given = self._values
        chosen, settings = self._chosen(Table((), {}, frozenset()))
        command, limit = given.get("sources-command", ()), given.get("limit")
        after, move_to = given.get("after", ("keep", None))
        sources, destinations = self._sources(chosen.options.relative), self._destinations()
        hosts = self._hosts_of((*sources, *given.get("datasets", ()), *destinations))
        job = Job(
            name=str(self._own.place[-1]),
            destinations=destinations,
            sources=sources,
            sources_command=("/bin/sh", "-c", command) if isinstance(command, str) else command,
            options=chosen.options,
            words=chosen.words,
            by_host={name: self._chosen(table)[0] for name, table in hosts.items()},
            dataset_options=settings,
            limit=limit.spans if limit else (),
            after=after,
            move_to=move_to,
            **{field: given[key] for key, field in _AS_THEY_ARE.items() if given.get(key)},
        )
        self._check_ends(job)
        return job

    def _place(self, key: str) -> Place:
        """Return where a key stands: in the job's own table, or in [defaults]."""
        is_default = key in self._defaults.values and key not in self._own.said
        return (*(self._defaults if is_default else self._own).place, key)

    def _wrong(self, key: str, text: str, *more: str | int) -> None:
        self._say((*self._place(key), *more), f"{'.'.join(map(str, self._own.place))}: {text}")

    def _check_keys(self) -> None:
        said = [key for key in _KINDS_OF_SOURCES if key in self._own.said]
        if not said:
            self._wrong("", f"has nothing to copy; one of {', '.join(_KINDS_OF_SOURCES)} says what")
        for key in said[1:]:
            self._wrong(key, f"{said[0]} and {key} do not go together: make two jobs of it")
        if "destinations" not in self._own.said | self._defaults.said:
            self._wrong("", "has no destinations")
        if "sign" in self._own.said and "manifest" not in self._values:
            self._wrong("sign", "sign goes with manifest, which it signs")
        for key in self._own.values if self._has_datasets else ():
            option = schema.OPTIONS.get(key)
            if key in _FOR_FILES or (option and not option.of_datasets):
                self._wrong(key, f"{key} is for files, and this job has datasets")
        for key in () if self._has_datasets else self._own.values:
            option = schema.OPTIONS.get(key)
            if option and not option.of_files:
                self._wrong(key, f"{key} is for datasets, and this job has none")

    # --- what is copied, and where to

    def _sources(self, is_relative: bool) -> tuple[str, ...]:
        given = self._values.get("sources", ())
        found = [self._whole("sources", number, text) for number, text in enumerate(given)]
        if is_relative:  # what is typed is what is kept below DEST: all behind the "/./"
            inside = os.path.join(self._folder, "")
            found = [
                f"{inside}./{path.removeprefix(inside)}"
                if path.startswith(inside) and not os.path.isabs(text)
                else path
                for text, path in zip(given, found, strict=True)
            ]
        return tuple(found)

    def _destinations(self) -> tuple[str, ...]:
        given = self._values.get("destinations", ())
        for number, text in enumerate(given):
            if text in given[:number]:
                self._wrong("destinations", f"{text} is twice among destinations", number)
        if self._has_datasets:
            return tuple(given)
        return tuple(self._whole("destinations", number, text) for number, text in enumerate(given))

    def _hosts_of(self, texts: tuple[str, ...]) -> dict[str, Table]:
        """Return the tables of these locations' hosts; all, where sources are not known yet."""
        if not self._own.said & {"sources", "datasets"}:
            return dict(self._hosts)
        found = set()
        for text in texts:
            with contextlib.suppress(UsageError):  # which is said elsewhere
                found.add(parse_location(text).host)
        return {name: table for name, table in self._hosts.items() if name in found}

    def _whole(self, key: str, number: int, text: str) -> str:
        """Return a location, with its whole path if it is one of this machine."""
        try:
            return text if parse_location(text).is_remote else whole(text, self._folder)
        except UsageError as error:
            self._wrong(key, f"{key}: {in_words(error)}", number)
        except Wrong as error:
            self._wrong(key, f"{key}: {error}", number)
        return os.path.join(self._folder, "wrong")

    def _check_ends(self, job: Job) -> None:
        """Note what can be copied by no run of pscp."""
        try:
            if job.datasets:
                self._check_datasets(job)
                return
            sources = [parse_location(text) for text in job.sources]
            for destination in job.destinations if sources else ():
                check_direction(sources, parse_location(destination))
        except UsageError as error:
            self._wrong("destinations", in_words(error))
            return
        if job.after != "keep" and any(each.is_remote for each in sources):
            self._wrong("after", f'after = "{job.after}" is for sources on this machine')

    def _check_datasets(self, job: Job) -> None:
        for destination in job.destinations:
            become: set[str] = set()
            for dataset, place in job.replications(destination):
                check_ends(parse_place(dataset), parse_place(place))
                if place in become:
                    raise UsageError(
                        f"several datasets would become {place}", 'a "/" behind it puts them below'
                    )
                become.add(place)

    # --- options

    def _chosen(self, host: Table) -> tuple[Chosen, dict[str, object]]:
        """Return the options at a host, with the settings of replications; say what is wrong.

        What the job says holds before what is said for the host, and that before [defaults].
        """
        tables, merged = (self._own, host, self._defaults), Words()
        for table in tables:
            for key, words in table.options.items():
                merged.setdefault(key, words)
        merged["limit"] = self._values["limit"].words if "limit" in self._values else ()
        merged.setdefault("batch", ("--batch",))
        for key in merged.keys() - {"limit"}:
            option = schema.OPTIONS[key]
            if not (option.of_datasets if self._has_datasets else option.of_files):
                del merged[key]
        causes = list[str]()
        while True:
            try:
                options, settings = self._options(merged)
            except UsageError as error:
                # What follows from an option that was taken out is no mistake of the user's.
                if any(f"--{cause}" in error.message for cause in causes):
                    return Chosen(Options()), {}
                cause = self._cause(merged, error)
                place = next((t.place for t in tables if cause in t.values), self._own.place)
                name = ".".join(map(str, self._own.place))
                self._say((*place, cause), f"{name}: {in_words(error)}")
                if not cause:
                    return Chosen(Options()), {}
                causes.append(cause)
                del merged[cause]
            else:
                words = tuple(word for each in merged.values() for word in each)
                return Chosen(options, words), settings

    def _options(self, words: Words) -> tuple[Options, dict[str, object]]:
        flat = [word for each in words.values() for word in each]
        given, _ = schema.parser(self._has_datasets).read(flat)
        settings = {
            name: given.pop(name) for name in _SETTINGS & given.keys() if self._has_datasets
        }
        Settings(**settings)
        if "filters" in given:
            given["filters"] = with_files(
                given["filters"], from0=given.get("from0", False), stdin_is_taken=True
            )
        options = Options(**given)
        replace(options, min_age_s=self._values.get("min-age") or None)
        if "after" in self._values and self._values["after"][0] != "keep":
            replace(options, remove_source_files=True)  # which does not go with everything
        return options, settings

    def _cause(self, words: Words, error: UsageError) -> str:
        """Return the first option without which the error is not raised; "" where none is."""
        for key in words:
            try:
                self._options({each: words[each] for each in words if each != key})
            except UsageError as other:
                if other.message == error.message:
                    continue
            return key
        return ""

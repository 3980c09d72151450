"""The meaning of a call's arguments: places, patterns, commands.

Not here: the calls (api.py), fields of Options (../options/options.py), the command line (cli/).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pscp.connect.connections import Connections
from pscp.connect.first_login import Worth, worth_many
from pscp.connect.one_host import OneHost
from pscp.ground import errors
from pscp.ground.locations import Location, as_location, check_direction
from pscp.ground.values import LOGINS_MAX
from pscp.options.option_pairs import check_several_hosts
from pscp.options.options import Options

if TYPE_CHECKING:
    from pscp.manifests.making import Making
    from pscp.transfer.terms.copy_terms import CopyRequest, JobTerms, Movers
    from pscp.transfer.terms.path_list import PathList

_LARGE_BYTES = 8 * 1024 * 1024  # from here on a second connection may be of use

Patterns = str | Sequence[str]
Place = str | os.PathLike[str] | Location
Source = Place | Iterable[Place]
Command = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def is_client(value: object) -> bool:
    return value is not None and not isinstance(value, str)


def host_of(host: Location) -> tuple[object, ...]:
    return host.login, host.port


def connections_to(host: Location) -> Connections:
    """Return the connections of a copy: to one host, or to several that see one place."""
    if not host.others:
        return OneHost(host)
    from pscp.transfer.far_hosts import FarHosts  # here: few copies need it

    return FarHosts(host)


def fitted(
    options: Options, terms: JobTerms | None, froms: Sequence[Location], to: Location
) -> Options:
    """Return the options of a copy with these ends. Raises UsageError for what no copy with them
    can be, whatever is there.

    pscp-run asks it before any copy, also of sources that are still to be listed: none are given.
    """
    check_terms(terms)
    _check_whole(options, terms, froms, to)
    for is_so, what in (
        (options.transfer_test, "-t"),
        (options.direct, "--direct"),
        (options.cluster is not None, "--cluster"),
    ):
        options = options.with_agent(what) if is_so else options
    if options.needs_agent and to.is_remote:
        options.with_agent(options.needs_agent)  # what a host lacks, the copy tells
    if not any(each.others for each in (*froms, to)):
        return options
    check_several_hosts(options if terms is None else terms.options(options))
    return options.with_agent("a copy to several hosts")


def check_terms(terms: object) -> None:
    """Raise UsageError for what is given as a call's terms and is none."""
    if terms is None:
        return
    from pscp.transfer.terms.copy_terms import JobTerms  # here: few copies have any

    if not isinstance(terms, JobTerms):
        raise errors.UsageError(f"terms must be pscp.JobTerms, not {terms!r}")


def _check_whole(
    options: Options, terms: JobTerms | None, froms: Sequence[Location], to: Location
) -> None:
    is_far = any(each.is_remote for each in froms)
    if options.direct and not (to.is_remote and all(each.is_remote for each in froms)):
        hint = "write both as HOST:PATH, or leave it out: one end is this machine"
        raise errors.UsageError("--direct is for a copy from host to host", hint)
    if options.cluster is not None and not options.dry_run and is_far and to.is_remote:
        what = "--cluster is for a copy to or from this machine"
        raise errors.UsageError(what, "run it at one of the two ends")
    if options.files_from is not None and len(froms) > 1:
        raise errors.UsageError("--files-from takes one SOURCE, which its paths are below")
    if options.has_whole_paths:
        from pscp.transfer.terms.relative import check_typed  # here: few copies need it

        for each in froms:
            check_typed(each.path)
    if terms is None or terms.moves is None:
        return
    if is_far or not to.is_remote:
        raise errors.UsageError("`moves` is for sources here")
    if terms.moves.folder and options.has_whole_paths:
        raise errors.UsageError("-R does not go with a folder into which sources are moved")


@contextlib.contextmanager
def with_cluster(request: CopyRequest) -> Iterator[CopyRequest]:
    """Yield the request with the cluster that it asks for, where bytes are to be moved."""
    options = request.options
    if options.cluster is None or options.dry_run or options.check:
        yield request
        return
    with cluster_of(options) as cluster:
        yield dataclasses.replace(request, movers=cluster)


@contextlib.contextmanager
def cluster_of(options: Options) -> Iterator[Movers]:
    """Yield the cluster that the options name. Raises UsageError, Unreachable."""
    from pscp.ground.libraries import check_installed  # here: few copies need these

    check_installed("distributed", before="--cluster: ")
    from pscp.cluster import clusters

    assert options.cluster is not None
    with clusters.opened(options.cluster, insecure=options.cluster_insecure) as cluster:
        yield cluster


def worth_of(froms: list[Location]) -> Worth | None:
    """Return what says how many logins a copy of these is worth; None: one.

    Of sources at another host it is not known yet what there is.
    """
    if any(each.is_remote for each in froms):
        return worth_many
    paths = [each.path for each in froms]
    try:
        if not any(os.path.isdir(path) or os.stat(path).st_size >= _LARGE_BYTES for path in paths):
            return None
    except OSError:
        return None

    def worth(rtt_s: float) -> int:
        from pscp.transfer.first_look import least_bytes  # here: ssh logs in meanwhile
        from pscp.transfer.lanes.autotune import lanes_worth

        return lanes_worth(rtt_s, least_bytes(paths), LOGINS_MAX)

    return worth


def filtered(options: Options, exclude: Patterns, include: Patterns) -> Options:
    """Return the options with these patterns before its own filters: first `include`."""
    words = {"include": include, "exclude": exclude}
    for word, given in words.items():
        if not isinstance(given, Sequence) or isinstance(given, bytes):
            raise errors.UsageError(f"{word} must be a pattern or several, not {given!r}")
        words[word] = [given] if isinstance(given, str) else given
    added = [(word, pattern) for word, given in words.items() for pattern in given]
    return dataclasses.replace(options, filters=(*added, *options.filters)) if added else options


def as_several(sources: Source) -> list[Place]:
    """Return one source, or all that an iterable has, which may be read but once."""
    if isinstance(sources, str | bytes | os.PathLike | Location):
        return [sources]
    return list(sources) if isinstance(sources, Iterable) else [sources]


def locations(sources: Source, destination: Place) -> tuple[list[Location], Location]:
    froms = [as_location(each) for each in as_several(sources)]
    to = as_location(destination)
    if not froms:
        raise errors.UsageError("there is no source")
    check_direction(froms, to)
    return froms, to


def command_words(command: Command) -> str | list[str]:
    """Return a command as the far end takes it: a text for a shell, or a list of words."""
    is_one = isinstance(command, str | bytes | os.PathLike)
    try:
        found = [os.fspath(each) for each in ([command] if is_one else list(command))]  # type: ignore[arg-type]
    except TypeError:
        found = []
    if not found or not all(isinstance(each, str) for each in found) or not found[0]:
        raise errors.UsageError(
            f"a command is a text, or a list of texts, not {command!r}",
            'such as ["uname", "-s"], or "uname -s" for the shell there',
        )
    if any("\0" in each for each in found):
        raise errors.UsageError(f"a command cannot have a NUL in it: {command!r}", "leave it out")
    return command if isinstance(command, str) else found


def seconds(given: bool | float | None, name: str = "wait") -> float:
    """Return for how many seconds at most a call waits; True or None: however long it takes."""
    if given is None and name != "wait":
        return math.inf
    if not isinstance(given, int | float) or not given >= 0:
        may_be = "True, False or a" if name == "wait" else "a"
        raise errors.UsageError(f"{name} must be {may_be} number of seconds, not {given!r}")
    return math.inf if given is True else float(given)


def check_functions(**given: object) -> None:
    """Raise UsageError for what is to be called and cannot be."""
    for name, value in given.items():
        if value is not None and not callable(value):
            raise errors.UsageError(f"{name} must be a function, not {value!r}")


def read_list(options: Options) -> PathList | None:
    """Read the list of --files-from, if there is one. Raises UsageError, CopyError."""
    if options.files_from is None:
        return None
    from pscp.transfer.terms import path_list  # here: few copies need it

    return path_list.read_list(options)


@contextlib.contextmanager
def making_of(options: Options, froms: list[Location], to: Location) -> Iterator[Making | None]:
    """Yield what makes the manifest of a copy, if one is to be made."""
    if options.manifest is None:
        yield None
        return
    from pscp.manifests.making import Making  # here: few copies need it

    making = Making(options, froms, to)
    try:
        yield making
    finally:
        making.close()

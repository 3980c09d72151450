"""The requests that make an end the source or the sink of a copy, and the digest that both have.

Not here: what is settled with both ends before (negotiation.py), who sends the requests
(lanes/lane.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pscp.connect.agent_program import copy_modules
from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import hashes
from pscp.endpoint.reading import source, tree
from pscp.ground import errors
from pscp.ground.values import KIB
from pscp.options import filters
from pscp.options.options import Options
from pscp.transfer.negotiation import NO_CLAIM, FenceClaim

_LIMITED_BLOCK_BYTES = 256 * KIB  # a block goes at once: larger ones would make -l a row of bursts


def in_common(agents: Sequence[RemoteAgent]) -> Mapping[str, float]:
    """Return the digests that all agents of an end have, and each one's least speed."""
    first, *others = (far.hashes for far in agents)
    shared = [name for name in first if all(name in each for each in others)]
    return {name: min(each[name] for each in (first, *others)) for name in shared}


def choose_hash(far: RemoteAgent) -> str:
    """Return the fastest digest that this end and the far one have. Raises as common_hash()."""
    return common_hash([far])


def common_hash(far: Sequence[RemoteAgent], sources: Sequence[RemoteAgent] = ()) -> str:
    """Return the fastest digest that both ends have: all far hosts, and this one or all sources.

    Raises ProtocolError if there is none.
    """
    try:
        return fastest(in_common(sources) if sources else hashes.speeds(), in_common(far))
    except ValueError:
        raise errors.ProtocolError("the two ends have no digest in common") from None


def fastest(here: Mapping[str, float], there: Mapping[str, float]) -> str:
    """Return the algorithm that takes the two ends, which both have it, the least time in sum.

    Raises ValueError if there is none.
    """
    shared = sorted(here.keys() & there.keys())
    return min(shared, key=lambda name: 1 / here[name] + 1 / there[name])


def source_request(
    tops: list[source.Top],
    options: Options,
    algorithm: str,
    *,
    lists: bool = False,
    counts: bool = False,
) -> requests.BeginSource:
    """Return the request that makes an end the source of this copy.

    With `lists` whole folders are compared by listings; with `counts` it may be asked to count.
    """
    rules = tree.Rules(
        recursive=options.recursive or options.files_from is not None,
        follow=options.follows_links,
        preserve=options.preserve,
        archive=options.archive,
        filters=filters.regexes(options.filters),
        one_file_system=options.one_file_system,
    )
    block_bytes = options.block_bytes
    if options.limit_kbit_s is not None:
        block_bytes = min(block_bytes, _LIMITED_BLOCK_BYTES)
    return requests.BeginSource(
        tops=tops,
        rules=rules,
        hash=algorithm,
        block_bytes=block_bytes,
        strong=options.strong,
        test=options.transfer_test,
        debug=options.debug,
        modules=_named(
            {
                **_modules(options, lists=lists),
                "ownership": options.archive or lists,
                "xattrs": options.archive or lists,
                "sameness": lists,
                "counting": counts,
                "synthetic": options.transfer_test,
                "listed_paths": bool(options.files_from or options.relative),
            }
        ),
    )


def _modules(options: Options, *, lists: bool, tells_place: bool = False) -> dict[str, bool]:
    """Return which modules both ends need beside those of every copy."""
    is_real = not options.transfer_test
    return {
        "mirror": options.delete and is_real,
        "moving": tells_place or (options.remove_source_files and is_real),
        "rows": lists,
        "listings": lists,
    }


def _named(wanted: Mapping[str, bool]) -> str:
    return copy_modules([name for name in wanted if wanted[name]])


def sink_request(
    root: str,
    token: str,
    options: Options,
    algorithm: str,
    nonce: str = "",
    *,
    claimed: FenceClaim = NO_CLAIM,
    base: str = "",
    has_old: bool = False,
    lists: bool = False,
    tells_place: bool = False,
) -> requests.BeginSink:
    """Return the request that makes an end the sink of this copy, for the run with this nonce.

    With `has_old` something is there already, to take what is the same from. With `lists` whole
    folders are compared by listings; with `tells_place` it may be asked where it is. `base` is DEST
    below the root, where it is not the root. Without a nonce the sink changes nothing.
    """
    links = bool(options.link_dest)
    looks = has_old or links or options.existing or options.relative or options.remove_source_files
    of_sink = {
        "ownership": options.archive or looks or lists,
        "xattrs": options.archive or looks or lists or options.backup,
        "sameness": looks or lists,
        "lookup": looks,
        "linkdest": links,
        "hardlinks": links or options.archive,
        "reuse": has_old,
        "backup": options.backup,
        "owners": options.chown is not None,
        "attributes": options.archive,
        "null_sink": options.transfer_test,
    }
    return requests.BeginSink(
        root=root,
        token=token,
        nonce=nonce,
        earlier=list(claimed.earlier),
        hash=algorithm,
        strong=options.strong,
        preserve=options.preserve,
        archive=options.archive,
        test=options.transfer_test,
        server=dict(claimed.server),
        debug=options.debug,
        backup=list(options.backups),
        link_dest=[base, f"{root}/{base}", *options.link_dest] if options.link_dest else [],
        modules=_named({**_modules(options, lists=lists, tells_place=tells_place), **of_sink}),
    )

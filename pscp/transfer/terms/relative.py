"""The names of sources below DEST: each alone; with -R the path, from a "/./" in it on. Pure.

Not here: what is below a source (../pieces/plan.py), the entries of the folders above it
(../../endpoint/there/listed_paths.py).
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Sequence

from pscp.endpoint.frames import failures
from pscp.endpoint.reading import paths
from pscp.endpoint.reading.paths import to_bytes, to_text
from pscp.endpoint.reading.source import Top, as_glob
from pscp.ground.errors import DestinationError, ProtocolError, UsageError

_SEVERAL = "the contents of two folders may have the same names: copy one folder after the other"


def check_typed(typed: str) -> None:
    """Raise UsageError for a source whose path leads up."""
    if ".." in _parts(typed):
        raise UsageError(f'{typed}: -R takes no "..": what it leads to has no path below DEST')


def name_of(typed: str, top: Top, *, is_pattern: bool, is_strict: bool) -> str:
    """Return where a source that was typed so lands below DEST; "" for DEST itself.

    Raises ProtocolError for a far end's source that is none of these; with `is_strict` also where
    a folder on the way does not match what was typed.
    """
    wanted = _parts(to_text(as_glob(to_bytes(typed))) if is_pattern else typed)
    literal = _parts(typed)
    found = [part for part in top.path.split("/") if part not in ("", ".")]
    parts = found[len(found) - len(wanted) :] if wanted else []
    name = "/".join(parts)
    is_asked = len(parts) == len(wanted) and top.name in ("", *parts[-1:])
    if is_asked and is_strict and is_pattern and parts != literal:
        is_asked = all(map(fnmatch.fnmatchcase, parts, wanted))
    try:
        if parts:
            paths.check(name)
    except failures.Refusal:
        is_asked = False
    if not is_asked:
        raise ProtocolError(f"the far end sends {top.path!a} for {typed!a}")
    return name


def _parts(typed: str) -> list[str]:
    """Return the components of the path below DEST that these words stand for."""
    _, mark, rest = typed.partition("/./")
    parts = [part for part in (rest if mark else typed).split("/") if part not in ("", ".")]
    return parts[1:] if typed.startswith("~") and not mark else parts


def without_repeated(named: Sequence[tuple[str, Top]]) -> list[tuple[str, Top]]:
    """Leave out the sources that are, or are in, another one. Raises DestinationError where two
    would land in one place.
    """
    kept: dict[str, Top] = {}
    for name, top in sorted(named, key=lambda each: each[0].split("/") if each[0] else []):
        for above in ("", *_above(name), name):
            other = kept.get(above)
            if other is None:
                continue
            rest = name[len(above) :].strip("/")
            if _plain(top.path) != _plain(f"{other.path}/{rest}"):
                raise DestinationError(f"{name}: several sources have this place")
            break
        else:
            kept[name] = top
    return list(kept.items())


def _plain(path: str) -> list[str]:
    return [path[:1], *(part for part in path.split("/") if part not in ("", "."))]


def _above(name: str) -> list[str]:
    """Return the folders above a name, the uppermost first."""
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def folders_above(names: Iterable[str], target_names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return for each folder above a source, by its path at the destination, one of the sources
    that are below it, and how many levels it is above that.
    """
    found: dict[str, tuple[int, int]] = {}
    for top, (name, target) in enumerate(zip(names, target_names, strict=True)):
        prefix = target.removesuffix(name)
        above = _above(name)
        for level, folder in enumerate(above):
            found.setdefault(prefix + folder, (top, len(above) - level))
    return found


def check_alone(names: list[str]) -> None:
    """Raise DestinationError for a name that several sources have."""
    for name, times in Counter(names).items():
        if times > 1:
            what = f"{name}: several sources have this name"
            raise DestinationError(what if name else _SEVERAL)

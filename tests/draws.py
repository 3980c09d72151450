"""Copies that are drawn: trees, what lies at the destination, and options that go together.

Not here: what must come of a copy (oracle.py), and who runs it (soak/).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from tree_data import FILE, FOLDER, LINK, SPECIAL, Made, may_make_devices

from pscp.options.option_pairs import NEEDED, REFUSED

NAMES = (
    b"f", b"a b", b"new\nline", b"\xc3\xa4", b"\xff\xfe", b".hidden", b"-d", b"star*", b"F",
    b"x" * 180, b"q?[z]", b"b\\s", b"late.tmp",
)  # fmt: skip
FOLDERS = (b"d", b"d 2", b"e\n", b"-e")
SIZES = (0, 1, 40, 40, 40, 5000, 131_072, 131_073, 400_000)
MODES = (0o644, 0o600, 0o755, 0o440)
LATELY_S, LONG_AGO_S = 1_700_000_000, 1_000_000_000
TEN_YEARS_S = 10 * 365 * 86_400
SECOND_NS = 10**9
SAMPLES: Mapping[str, tuple[Any, ...]] = {
    "preserve": (True,),
    "archive": (True,),
    "copy_links": (True,),
    "one_file_system": (True,),
    "relative": (True,),
    "dry_run": (True,),
    "check": (True,),
    "filters": (
        (("exclude", "*.tmp"),),
        (("exclude", "d/"),),
        (("include", "*/"), ("include", "f*"), ("exclude", "*")),
        (("exclude", "/t/d/***"), ("exclude", "[!a-z]*")),
    ),
    "files_from": (True,),  # what is listed is drawn with the trees
    "min_size_bytes": (41,),
    "max_size_bytes": (5000,),
    "min_age_s": (TEN_YEARS_S,),
    "max_age_s": (TEN_YEARS_S,),
    "update": (True,),
    "existing": (True,),
    "ignore_existing": (True,),
    "size_only": (True,),
    "checksum": (True,),
    "mkpath": (True,),
    "delete": (True,),
    "max_delete": (0, 1000),
    "remove_source_files": (True,),
    "backup": (True,),
    "backup_dir": ("old",),
    "suffix": (".bak",),
    "link_dest": (("../yesterday",),),
    "chmod": ("D755,F640", "go-w", "u=rwX,go=rX"),
    "chown": ("0:0",),
    "numeric_ids": (True,),
    "strong": (True,),
    "transfer_test": (True,),
    "resume": (False,),
    "manifest": (True,),  # in a file of the case's own
    "chunk_bytes": (262_144,),
}
# What an option says as well, where another one needs that.
IMPLIED = {"recursive": ("archive",), "preserve": ("archive",)}
HISTORIES = ("new", "same", "older", "mixed", "mixed", "newer")


def refusal(options: Mapping[str, Any]) -> str:
    """Say why the parser refuses these options; "" if it does not."""
    given = {name for name, value in options.items() if value or name == "max_delete"}
    for one, other, *_ in REFUSED:
        if {one, other} <= given:
            return f"{one} and {other}"
    for one, other, *_ in NEEDED:
        if one in given and not {other, *IMPLIED.get(other, ())} & given:
            return f"{one} without {other}"
    if {"delete", "backup"} <= given and "backup_dir" not in given:
        return "delete and backup without backup_dir"
    if options.get("min_size_bytes", 0) > options.get("max_size_bytes", 10**9):
        return "no file could be both"
    return ""


def options(rng: random.Random, most: int = 5) -> dict[str, Any]:
    """Draw options that go together; all of them with -r or -a."""
    while True:
        names = rng.sample(sorted(SAMPLES), rng.randrange(most + 1))
        names += [pair.other for pair in NEEDED if pair.one in names and pair.other in SAMPLES]
        if rng.random() < 0.5:
            names.append("archive")
        found = {"recursive": True, **{name: rng.choice(SAMPLES[name]) for name in names}}
        if {"archive", "files_from"} <= found.keys() and rng.random() < 0.5:
            del found["recursive"]  # which -a does not say of listed folders
        if not refusal(found):
            return found


def source(rng: random.Random, has_oddities: bool = True) -> dict[bytes, Made]:
    """Draw a tree `t`, and a file `one` beside it."""
    tree = {b"t": _folder(rng), b"one": _file(rng)}
    for _ in range(rng.randrange(5)):
        above = rng.choice([path for path, made in tree.items() if made.kind == FOLDER])
        if above.count(b"/") < 3:
            tree[above + b"/" + rng.choice(FOLDERS)] = _folder(rng)
    folders = [path for path, made in tree.items() if made.kind == FOLDER]
    for _ in range(rng.randrange(14)):
        _add(rng, tree, rng.choice(folders) + b"/" + rng.choice(NAMES))
    files = [path for path, made in tree.items() if made.kind == FILE and path != b"one"]
    for _ in range(rng.randrange(3) if files else 0):
        path = rng.choice(folders) + b"/" + rng.choice((b"h1", b"h2", b"z"))
        if path not in tree:
            tree[path] = Made(FILE, same_as=rng.choice(files))
    for _ in range(rng.randrange(3)):
        leads = [b"f", b"d", b"../t/d", b"d 2/f"]
        leads += [b"nowhere", b"/nowhere", b".", b".."] if has_oddities else []
        path = rng.choice(folders) + b"/" + rng.choice((b"l1", b"l2", b"L"))
        tree.setdefault(path, Made(LINK, mtime_ns=_time(rng), target=rng.choice(leads)))
    if has_oddities and rng.random() < 0.1:
        made = Made(SPECIAL, mtime_ns=_time(rng))
        if made.mtime_ns % 2 and may_make_devices():
            made = made._replace(mark=3, mode=0o660)
        tree.setdefault(rng.choice(folders) + b"/fifo", made)
    return tree


def _add(rng: random.Random, tree: dict[bytes, Made], path: bytes) -> None:
    if path not in tree:
        tree[path] = _file(rng)


def _time(rng: random.Random) -> int:
    when_s = rng.choice((LATELY_S, LATELY_S, LATELY_S, LONG_AGO_S)) + rng.randrange(3)
    return when_s * SECOND_NS + rng.choice((0, 123_456_789))


def _folder(rng: random.Random) -> Made:
    mode = rng.choice((0o755, 0o700, 0o2775, 0o555))
    return Made(FOLDER, mode=mode, mtime_ns=_time(rng))


def _file(rng: random.Random) -> Made:
    mode = rng.choice(MODES)
    return Made(FILE, rng.randrange(3), rng.choice(SIZES), mode, _time(rng))


def before(
    rng: random.Random, tree: Mapping[bytes, Made], history: str, has_clashes: bool = True
) -> dict[bytes, Made]:
    """Draw what lies at the destination of a tree: nothing, or another version of it."""
    if history == "new":  # but for an empty folder, which spelling() may name
        return {b"new": _folder(rng)} if rng.random() < 0.5 else {}
    acts: tuple[Callable[[Made], Made | None], ...] = {
        "same": (_same,),
        "older": (_same, _older),
        "newer": (_same, _newer, _newer),
        "mixed": (_same, _older, _newer, _other, _gone, _moded, _aged, _unread, _coarse),
    }[history]
    found: dict[bytes, Made] = {}
    for path, made in sorted(tree.items()):
        above = path.rpartition(b"/")[0]
        other = rng.choice(acts)(made) if path != b"t" and made.kind != FOLDER else made
        if other is not None and made.kind == SPECIAL:
            other = other._replace(mark=made.mark)  # else it would be another device
        if other is not None and (not above or above in found):
            found[path] = other
    found = {
        path: made for path, made in found.items() if not made.same_as or made.same_as in found
    }
    specials = [path for path, made in found.items() if made.kind == SPECIAL]
    found |= {path + b"2": Made(SPECIAL, same_as=path) for path in specials if rng.random() < 0.3}
    folders = [path for path, made in found.items() if made.kind == FOLDER]
    for _ in range(rng.randrange(4) if folders and history == "mixed" else 0):
        _add(rng, found, rng.choice(folders) + b"/" + rng.choice((b"extra", b"late.tmp", b"e2")))
    if folders and history == "mixed" and rng.random() < 0.3:
        more = rng.choice(folders) + b"/more"
        found |= {more: _folder(rng), more + b"/in it": _file(rng), more + b"/x.tmp": _file(rng)}
    if has_clashes and rng.random() < 0.1:
        leaves = [path for path, made in found.items() if made.kind in (FILE, LINK)]
        if leaves:
            found[path := rng.choice(leaves)] = _folder(rng)
            found = {name: made for name, made in found.items() if made.same_as != path}
    inner = [path for path, made in found.items() if made.kind == FOLDER and path.count(b"/")]
    if has_clashes and inner and rng.random() < 0.1:
        taken = rng.choice(inner)
        found = {path: made for path, made in found.items() if not path.startswith(taken + b"/")}
        found = {p: made for p, made in found.items() if not made.same_as or made.same_as in found}
        found[taken] = rng.choice((_file(rng), Made(SPECIAL, mtime_ns=_time(rng))))
    return found


def _same(made: Made) -> Made:
    return made


def _older(made: Made) -> Made:
    return made._replace(mark=made.mark + 3, mtime_ns=made.mtime_ns - 86_400 * SECOND_NS)


def _newer(made: Made) -> Made:
    return made._replace(mark=made.mark + 3, mtime_ns=made.mtime_ns + 3600 * SECOND_NS)


def _other(made: Made) -> Made:
    return made._replace(size=made.size + 7, mark=made.mark + 1)


def _moded(made: Made) -> Made:
    return made._replace(mode=0o711)


def _aged(made: Made) -> Made:
    return made._replace(mtime_ns=made.mtime_ns - 3600 * SECOND_NS)


def _unread(made: Made) -> Made:
    return made._replace(mark=made.mark + 3)  # the quick check takes it for the same


def _coarse(made: Made) -> Made:
    return made._replace(mark=made.mark + 3, mtime_ns=made.mtime_ns // SECOND_NS * SECOND_NS)


def _gone(made: Made) -> None:
    return None


def spelling(
    rng: random.Random, tree: Mapping[bytes, Made], given: Mapping[str, Any]
) -> tuple[list[bytes], bytes, list[bytes]]:
    """Draw (sources, the destination, the list) as they are spelt."""
    if given.get("files_from"):
        paths = [path.removeprefix(b"t/") for path in tree if path.startswith(b"t/")]
        paths = [path for path in paths if b"\n" not in path and path[:1] not in b"#;"]
        listed = rng.sample(paths, min(len(paths), rng.randrange(1, 5))) or [b"missing"]
        return [b"t/."], rng.choice((b"", b"new", b"new/")), listed
    if given.get("relative"):
        deep = [path for path, made in tree.items() if made.kind == FOLDER]
        return [rng.choice(deep)], rng.choice((b"", b"new/")), []
    if given.get("link_dest"):
        return [b"t"], b"today/", []
    if given.get("mkpath") and rng.random() < 0.5:
        return [b"t"], b"far/down/", []
    both = ([b"t", b"one"], [b"t/.", b"one"])
    sources = rng.choice(([b"t"], [b"t"], [b"t/."], [b"one"], *both))
    ways = (b"", b"", b"new/", b"new") if len(sources) == 1 else (b"", b"new/")
    return sources, rng.choice(ways), []

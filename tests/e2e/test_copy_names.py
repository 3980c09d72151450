"""Names of any bytes but "/" and NUL travel both ways, as sources, destinations and in trees.

Not here: globs and "~" (test_copy_paths.py).
"""

from __future__ import annotations

import os
from pathlib import Path

from compare import assert_same_tree

from e2e.ways import Way

EVERY_WAY = True

NAMES = (
    b"a space", b" at both ends ", b"two\nlines", b"'single' \"double\" `back`",
    b"$HOME; exit 1 & true | cat > x", b"-x", b"--help", b"a:b", b"glob [a-z]*?{1,2}", b"~",
    b".hidden", b"back\\slash", "\u00fcn\u00efc\u00f6d\u00e9 \u2603".encode(),
    b"not UTF-8 \xff\xfe\x80", b"\x1b[31m", b"n" * 255,
)  # fmt: skip
MORE_NAMES = (
    b"-rf", b"--", b"host:path", b":", b"[::1]:x", b"ssh:", b"*", b"?", b"[", b"[!a]", b"{a,b}",
    b"~root", b"'", b'"', b"`id`", b"$(id)", b"%h%n%%", b"\n", b"\r", b"\t ", b"...",
    b".x.pscp-part", b"\xff", b"\xff" * 255, "\u00e9".encode() * 127,
    b"\xed\xa0\x80",  # a surrogate in UTF-8, which Python does not decode
)  # fmt: skip
ALL_NAMES = (*NAMES, *MORE_NAMES)


def fill(folder: Path, names: tuple[bytes, ...] | list[bytes]) -> None:
    for name in names:
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_bytes(name * 3)


def test_a_tree_of_awkward_names(way: Way) -> None:
    for number, name in enumerate(ALL_NAMES):
        inner = Path(os.fsdecode(os.path.join(os.fsencode(way.source), name)))
        inner.mkdir()
        fill(inner, ALL_NAMES[number % 7 :: 7])
    result = way.copy(".")
    assert result.ok
    assert_same_tree(way.source, way.destination)
    assert way.copy(".").files_resumed == result.files  # each is found there by its name


def test_awkward_names_typed(way: Way) -> None:
    fill(way.source, ALL_NAMES)
    ran = way.command(names=[os.fsdecode(name) for name in ALL_NAMES])
    assert (ran.code, ran.out) == (0, ""), ran.err
    assert_same_tree(way.source, way.destination)


def test_a_destination_of_that_name(way: Way) -> None:
    for name in MORE_NAMES:
        (way.source / "x").write_bytes(name)
        assert way.copy("x", to=os.fsdecode(name)).ok, name
        assert os.listdir(os.fsencode(way.destination)) == [name]
        os.unlink(os.path.join(os.fsencode(way.destination), name))


def test_relative_names_that_look_like_something_else(way: Way) -> None:
    """Behind a "--" or a "./" they are what they are."""
    names = [b"-x", b"a:b", b"--help", b"-r:"]
    folder = way.source if way.is_push else way.destination
    fill(way.source, names)
    host = way.server.host
    if way.is_push:
        words = ["./a:b", "./-r:", f"{host}:{way.destination}", "--", "-x", "--help"]
        ran = way.typed("--", *words[:2], "-x", "--help", words[2], cwd=folder)
    else:
        ran = way.typed(f"{host}:{way.source}/*", ".", cwd=folder)
    assert ran.code == 0, ran.err
    assert_same_tree(way.source, way.destination)


def test_a_name_reaches_no_terminal_raw(push: Way) -> None:
    """Of a file that fails, on stderr; of one that would be copied, on stdout."""
    name = b"\x1b[2Jx\xff\ny"
    os.symlink("nowhere", os.path.join(os.fsencode(push.source), name))
    fill(push.source, [name + b"z"])
    ran = push.command("-r", "-n", names=["."])
    assert ran.code == 1
    assert "\x1b" not in ran.out + ran.err
    assert r"\x1b[2Jx\xff\x0ay: is a dangling link" in ran.err
    assert r"\x1b[2Jx\xff\x0ayz" in ran.out

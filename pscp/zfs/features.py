"""What the zfs of an end can do, read from its own words: its usage, and its pool's features.

Not here: asking for them (inventory.py). Read next: commands.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# Letters of zfs send that are used wherever both ends have them, and what the receiving pool needs.
_FASTER = {"L": "large_blocks", "e": "embedded_data", "c": "lz4_compress"}
_ENTRY = re.compile(r"^\t(?=\S)", re.MULTILINE)  # a continued line has blanks after its tab
_LETTERS = re.compile(r"\[-([A-Za-z]+)\]")


@dataclass(frozen=True)
class Abilities:
    """What the zfs of one end can do. `features` are its pool's, with their state, if known."""

    send: frozenset[str] = frozenset()  # letters
    receive: frozenset[str] = frozenset()
    subcommands: frozenset[str] = frozenset()
    resumes: bool = False  # zfs send -t
    features: Mapping[str, str] = field(default_factory=dict)

    @property
    def bookmarks(self) -> bool:
        return "bookmark" in self.subcommands

    @property
    def holds(self) -> bool:
        return {"hold", "release"} <= self.subcommands

    def lacks(self, feature: str) -> bool:
        return self.features.get(feature) == "disabled"


@dataclass(frozen=True)
class Common:
    """What the two ends can do together."""

    letters: tuple[str, ...] = ()  # of zfs send, beside what was asked for
    resume: bool = False
    unmounted: bool = False  # zfs receive -u
    sizes: bool = False  # zfs send -nvP
    holds: bool = False  # at the source
    leaves: bool = False  # zfs receive -x


def parse_usage(text: str) -> Abilities:
    """Read what zfs prints when it is called without arguments."""
    lines = [entry.strip() for entry in _ENTRY.split(text)[1:]]
    send, receive = _of("send", lines), _of("receive", lines)
    taking = re.findall(r"\[-([a-z]) <property", receive)
    return Abilities(
        send=frozenset("".join(_LETTERS.findall(send))),
        receive=frozenset("".join([*_LETTERS.findall(receive), *taking])),
        subcommands=frozenset(line.split()[0] for line in lines if line),
        resumes=re.search(r"-t <\w*token", send) is not None,
    )


def _of(subcommand: str, lines: list[str]) -> str:
    return "\n".join(line for line in lines if line.split()[:1] == [subcommand])


def parse_features(text: str) -> dict[str, str]:
    """Read `zpool get -H -o property,value all POOL`."""
    rows = (line.split("\t") for line in text.splitlines())
    named = (row for row in rows if len(row) == 2 and row[0].startswith("feature@"))
    return {row[0].removeprefix("feature@"): row[1] for row in named}


def together(source: Abilities, dest: Abilities) -> Common:
    """Return what may be used between two ends. An end can receive what it can send."""
    letters = [
        letter
        for letter, feature in _FASTER.items()
        if letter in source.send & dest.send and not dest.lacks(feature)
    ]
    has_zstd = source.features.get("zstd_compress") == "active"
    if "c" in letters and has_zstd and dest.features.get("zstd_compress") in (None, "disabled"):
        letters.remove("c")
    sizes = {"n", "v", "P"} <= source.send
    return Common(
        letters=tuple(letters),
        # a token is used only when zfs send -nvP has told what is in it
        resume=source.resumes and sizes and "s" in dest.receive,
        unmounted="u" in dest.receive,
        sizes=sizes,
        holds=source.holds,
        leaves="x" in dest.receive,
    )

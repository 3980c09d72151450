"""docs/option-pairs.md: which options go together, from the table in pscp/options/option_pairs.py.

Not here: when it is written (../docs).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pscp.options.option_pairs import MEANT, NEEDED, OF_A_STREAM, REFUSED, Pair, spelled

INTRODUCTION = """\
# Which options go together

Two options that decide what becomes of an entry are **refused** together, before anything is
connected, mean something **together** that neither says alone, or both do what they do alone: what
is in no list below.
"""


STREAM = """\
Of these, `pscp - HOST:FILE` and `pscp HOST:FILE -` take {} alone.\
"""


def option_pairs_page() -> str:
    lines = [INTRODUCTION]
    lines += ["## Refused\n", "Leave out one of them, or do what is said behind the semicolon.\n"]
    lines += [*_grouped(REFUSED), "\n## Needed\n"]
    lines += [*_grouped(NEEDED, "without"), "\n## Meant together\n", *_grouped(MEANT)]
    lines += ["\n## With a stream\n", STREAM.format(_and(OF_A_STREAM))]
    return "\n".join(lines) + "\n"


def _grouped(pairs: Iterable[Pair], word: str = "with") -> Iterator[str]:
    """A line for each reason: the pairs that have it, by the option that they share."""
    by_reason: dict[str, list[Pair]] = {}
    for pair in pairs:
        said = pair.why + (f"; {pair.hint}" if pair.hint else "")
        by_reason.setdefault(said, []).append(pair)
    for said, found in by_reason.items():
        of_one: dict[str, list[str]] = {}
        of_other: dict[str, list[str]] = {}
        for pair in found:
            of_one.setdefault(pair.one, []).append(pair.other)
            of_other.setdefault(pair.other, []).append(pair.one)
        if len(of_other) < len(of_one):
            shown = [f"{_and(ones)} {word} `{spelled(other)}`" for other, ones in of_other.items()]
        else:
            shown = [f"`{spelled(one)}` {word} {_and(others)}" for one, others in of_one.items()]
        yield f"- {'; '.join(shown)}: {said or 'says nothing alone'}"


def _and(names: Iterable[str]) -> str:
    return ", ".join(f"`{spelled(name)}`" for name in names)

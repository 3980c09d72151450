"""docs/option-pairs.md: which options go together, from the table in pscp/options/option_pairs.py.

Not here: when it is written (../docs).
"""

from __future__ import annotations

from pscp.options.option_pairs import COMBINED, MEANT, NEEDED, REFUSED, Pair, spelled

INTRODUCTION = """\
# Which options go together

Each option below takes part in deciding what becomes of an entry. Of every two of them one of
three things is true, and pscp itself reads it from the table that made this page:

- they are **refused** together, before anything is connected (`x`);
- they mean something **together** that neither says alone (`m`);
- both **go**, and each does what it does alone (`.`).
"""


def option_pairs_page() -> str:
    lines = [INTRODUCTION, "## At one look\n", "```text", *_matrix(), "```\n"]
    lines += ["## Refused\n", "| options | why | what to do |", "|---|---|---|"]
    lines += [f"| {_both(pair)} | {pair.why} | {_instead(pair)} |" for pair in REFUSED]
    lines += ["\n## Needed\n", "| option | says nothing without | why |", "|---|---|---|"]
    lines += [f"| `{spelled(p.one)}` | `{spelled(p.other)}` | {p.why} |" for p in NEEDED]
    lines += ["\n## Meant together\n", "| options | what they mean |", "|---|---|"]
    lines += [f"| {_both(pair)} | {pair.why} |" for pair in MEANT]
    return "\n".join(lines) + "\n"


def _matrix() -> list[str]:
    marks = {frozenset(pair[:2]): "x" for pair in REFUSED}
    marks |= {frozenset(pair[:2]): "m" for pair in (*MEANT, *NEEDED)}
    rows = []
    for place, name in enumerate(COMBINED):
        cells = [marks.get(frozenset((name, each)), ".") for each in COMBINED[:place]]
        rows.append(f"{place + 1:2} {spelled(name):<22} {_grouped(cells)}".rstrip())
    numbers = [f"{number + 1:2}" for number in range(len(COMBINED) - 1)]
    tens, ones = (_grouped([number[digit] for number in numbers]) for digit in (0, 1))
    return [" " * 26 + tens, " " * 26 + ones, *rows]


def _grouped(cells: list[str]) -> str:
    """The cells in groups of five, so that an eye finds its column."""
    return " ".join("".join(cells[at : at + 5]) for at in range(0, len(cells), 5))


def _both(pair: Pair) -> str:
    return f"`{spelled(pair.one)}`, `{spelled(pair.other)}`"


def _instead(pair: Pair) -> str:
    return pair.hint or "leave out one of them"

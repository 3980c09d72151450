"""What users of scp and rsync type: taken as it is meant where that is harmless, else explained.

It changes the words of a command line before they are parsed.

Not here: pscp's own options (arguments.py), the tables of both (docs/coming-from.md).
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from pscp.errors import UsageError
from pscp.option_bounds import PROGRESS_STYLES

Actions = Mapping[str, argparse.Action]  # of a parser, by option string

_OTHER_NAMES = {"z": "C"}
# What is so anyway: with -a hard links, ACLs and extended attributes are kept (-H -A -X); a file is
# written whole (-W), what has come of one that is cut short is kept (--partial), and a copy between
# two hosts goes through this machine (-3).
_WITH_ARCHIVE = {"H": "hard links", "A": "ACLs", "X": "extended attributes"}
_SAID_ANYWAY = {"3", "W", "--whole-file", "--partial", "--human-readable", "--protect-args"}
_EXPLAINED = {
    "-D": ("-D: pscp starts no server of its own here", "-S PROGRAM runs another ssh"),
    "-O": ("-O: pscp does not speak scp's old protocol", "leave it out: it speaks SFTP if need be"),
    "-e": ("-e: ssh is run by pscp", "give ssh's options to pscp: -P PORT, -i FILE, -o KEY=VALUE"),
    "--rsh": ("--rsh: ssh is run by pscp", "give ssh's options to pscp: -P PORT, -i FILE"),
    "--append": ("--append: pscp goes on with what was cut short by itself", "leave it out"),
    "--inplace": (
        "--inplace: pscp never changes a file under its name",
        "leave it out: only what differs is sent, and where the file system shares blocks, written",
    ),
    "--info": ("--info: pscp shows its progress by itself", "--progress plain shows it in lines"),
}  # fmt: skip
_TEST = (
    "-t beside -r, -p or -a sends made-up data and writes nothing; rsync's -t is -p here",
    "-p or -a keeps times; --transfer-test is the test",
)


def understood(words: Sequence[str], actions: Actions) -> list[str]:
    """Return the words of a pscp command line as the parser takes them. Raises UsageError."""
    found, letters, left = list[str](), "", list(words)
    while left:
        word = left.pop(0)
        if word in ("--", "-") or not word.startswith("-"):
            found.append(word)
            if word == "--":
                found += left
                break
        elif word.startswith("--") or (word in actions and len(word) > 2):  # -vv
            found += _long(word, left, actions)
        else:
            kept, flags = _short(word[1:], left, actions)
            found += kept
            letters += flags
    if "t" in letters and set(letters) & set("rpa"):
        raise UsageError(*_TEST)
    if "A" in letters and "--direct" in words and "a" not in letters:  # ssh's, not rsync's
        letters, found = letters.replace("A", ""), ["-o", "ForwardAgent=yes", *found]
    for letter, what in _WITH_ARCHIVE.items():
        if letter in letters and "a" not in letters and "--archive" not in words:
            raise UsageError(f"-{letter}: {what} are kept with -a, and only then")
    return ["-vv", *found] if letters.count("v") > 1 else found


def _long(word: str, left: list[str], actions: Actions) -> list[str]:
    name, equals, value = word.partition("=")
    if name in _SAID_ANYWAY:
        return []
    if name == "--bwlimit":
        return ["--limit", str(_kbit_s(value if equals else left.pop(0) if left else ""))]
    if name in _EXPLAINED and name not in actions:
        raise UsageError(*_EXPLAINED[name])
    if name not in actions or equals or actions[name].nargs == 0:
        return [word]
    if name == "--progress" and left and _is_place(left[0]):
        return []  # rsync's, which takes no value
    return [word, left.pop(0)] if left else [word]


def _short(letters: str, left: list[str], actions: Actions) -> tuple[list[str], str]:
    """Return what a word of short options becomes, and its flags."""
    flags = ""
    for place, letter in enumerate(letters):
        name, rest = f"-{_OTHER_NAMES.get(letter, letter)}", letters[place + 1 :]
        if letter == "P" and not rest and left and _is_place(left[0]):
            break  # rsync's --partial --progress; ours takes a port
        if name not in actions and name in _EXPLAINED:
            _explain(name, rest or (left[0] if left else ""))
        if name in actions and actions[name].nargs != 0:
            before, value = _as_words(flags), [rest] if rest else left[:1]
            del left[: not rest]
            return [*before, name, *value], flags
        flags += name[1]
    return _as_words(flags), flags


def _as_words(flags: str) -> list[str]:
    kept = "".join(each for each in flags if each not in _WITH_ARCHIVE and each not in _SAID_ANYWAY)
    return [f"-{kept}"] if kept else []


def _explain(name: str, value: str) -> NoReturn:
    what, hint = _EXPLAINED[name]
    if name == "-e" and (port := re.search(r"ssh .*-p *([0-9]+)", value)):
        hint = f"the port is -P {port[1]} here; other options of ssh: -i FILE, -o KEY=VALUE"
    raise UsageError(what, hint)


def _is_place(word: str) -> bool:
    if word in PROGRESS_STYLES:
        return False
    return word.startswith("-") or ":" in word or "/" in word or os.path.lexists(word)


def _kbit_s(text: str) -> int:
    """Return rsync's RATE in kbit/s: a number of KiB/s, or one with a unit."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([KMG]?)", text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise UsageError(f"--bwlimit: {text!r} is not a rate", "-l 10M limits to 10 Mbit/s")
    rate = float(match[1]) * 1024.0 ** " KMG".index(match[2].upper() or "K")
    return max(1, round(rate * 8 / 1000))

"""Takes what users of scp and rsync type as it is meant where that is harmless, else explains it.

Not here: the parsers (arguments.py), the same for people (docs/coming-from.md).
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from pscp.ground.errors import UsageError
from pscp.options.option_rows import PROGRESS_STYLES

Actions = Mapping[str, argparse.Action]  # of a parser, by option string

_OTHER_NAMES = {"z": "C"}
# What is so anyway: with -a hard links, ACLs and extended attributes are kept (-H -A -X); a file is
# written whole (-W), what has come of one that is cut short is kept (--partial), and a copy between
# two hosts goes through this machine (-3).
_WITH_ARCHIVE = {"H": "hard links", "A": "ACLs", "X": "extended attributes"}
_SAID_ANYWAY = {
    "3", "W", "--whole-file", "--partial", "--human-readable", "--protect-args", "--secluded-args",
    "--ignore-errors", "--fsync", "--preallocate", "--sparse", "--trust-sender", "--no-motd",
    "--inc-recursive", "--i-r", "--no-inc-recursive", "--no-i-r", "--no-whole-file", "--no-W",
}  # fmt: skip
# rsync's, by what they are here. What is deleted goes once all has landed, however it is asked for.
_NAMED_HERE = {
    "--del": "--delete",
    "--delete-after": "--delete",
    "--delete-delay": "--delete",
    "--delete-during": "--delete",
    "--compress": "--compression",
    "--ipv4": "-4",
    "--ipv6": "-6",
    "--itemize-changes": "--itemize",
    "--ignore-non-existing": "--existing",
}
_OF_ARCHIVE = {"--hard-links", "--acls", "--xattrs", "--specials", "--devices", "--atimes"}
_LETTERS_OF_ARCHIVE = {"D", "U", "g"}  # rsync's --devices --specials, --atimes and --group
_BY_HAND = "leave it out; find DIR -type d -empty -delete removes them there"
_RULES = (
    "patterns are --exclude and --include here",
    "--exclude-from FILE takes rules with + and -; protect, hide, merge and the like are not known",
)
_LINKS = "--link-dest DIR makes hard links to what is the same there"
_KEPT = "-p keeps modes and times, -a also owners and links; --chmod and --chown change them"
_ENDED = "timeout 30m pscp ... ends it; the same command goes on"
NOT_IN_PLACE = "only what differs is sent, and where the file system shares blocks, written"
_EXPLAINED = {
    "-D": ("pscp starts no server of its own here", "-S PROGRAM runs another ssh"),
    "-O": (
        "pscp does not speak scp's old protocol, and folders have their times with -p or -a",
        "leave it out: it speaks SFTP if need be",
    ),
    "-e": ("ssh is run by pscp", "give ssh's options to pscp: -P PORT, -i FILE, -o KEY=VALUE"),
    "--rsh": ("ssh is run by pscp", "give ssh's options to pscp: -P PORT, -i FILE"),
    "--append": ("pscp goes on with what was cut short by itself", "leave it out"),
    "--inplace": (
        "pscp never changes a file under its name",
        f"leave it out: {NOT_IN_PLACE}",
    ),
    "--info": ("pscp shows its progress by itself", "--progress plain shows it in lines"),
    "-m": ("rsync's leaves out empty folders, mscp's names cores", f"{_BY_HAND}; --cpus 0,1"),
    "-g": (
        "rsync's keeps groups, mscp's names what answers loss",
        "-a keeps groups; --congestion bbr",
    ),
    "--prune-empty-dirs": ("empty folders are copied as well", _BY_HAND),
    "--dirs": (
        "folders are copied with what is in them, or not at all",
        "-a --files-from FILE makes the folders that FILE lists, alone",
    ),
    "--outbuf": ("each line is written at once", "leave it out"),
    "--omit-link-times": ("with -a links have their source's times too", "leave it out"),
    "--omit-dir-times": ("with -p or -a folders have their source's times too", "leave it out"),
    "--delete-before": (
        "what is deleted goes once all has landed",
        "--delete; where both do not fit, -n --delete lists what to delete by hand first",
    ),
    "--delete-excluded": ("what is left out is protected", "delete it there once, by hand"),
    "-f": _RULES,
    "--filter": _RULES,
    "--cvs-exclude": ("patterns are --exclude here", "--exclude-from FILE"),
    "--compare-dest": ("nothing is left out of DEST", _LINKS),
    "--copy-dest": ("nothing is copied from a folder there", _LINKS),
    "--no-perms": ("-a keeps modes", _KEPT),
    "--no-owner": ("-a keeps owners, as root", _KEPT),
    "--no-group": ("-a keeps groups", _KEPT),
    "--no-links": ("-a keeps links", "-L copies what they lead to"),
    "--no-D": ("root's -a makes devices and FIFOs", "--exclude leaves one out by its name"),
    "--no-times": ("-a keeps times", "-r keeps none"),
    "--perms": ("modes are kept with times", _KEPT),
    "--times": ("times are kept with modes", _KEPT),
    "--links": ("links are kept with -a alone", _KEPT),
    "--owner": ("owners are kept with -a alone", _KEPT),
    "--group": ("groups are kept with -a alone", _KEPT),
    "-U": ("the time of the last use is kept with the others", _KEPT),
    "--out-format": ("names have one form here", "-v, or --progress json"),
    "--log-file-format": ("the log has one form here", "leave it out"),
    "--rsync-path": ("what runs at the far end is sent there", "root@HOST:PATH logs in as root"),
    "--partial-dir": ("a part lies hidden beside its place", "leave it out"),
    "--temp-dir": ("a part lies hidden beside its place", "leave it out"),
    "--delay-updates": ("each file gets its name once it is whole", "leave it out"),
    "--contimeout": ("that is --timeout here", "--timeout SECONDS"),
    "--ignore-times": ("what has the same size and time is unread", "--checksum reads it"),
    "--modify-window": ("times count as far as a file system keeps them", "leave it out"),
    "--fuzzy": ("what is the same is found in the old file alone", "leave it out"),
    "--safe-links": ("-a keeps links as they are", "-L follows them"),
    "--copy-unsafe-links": ("-a keeps links as they are", "-L follows them"),
    "--munge-links": ("-a keeps links as they are", "leave it out"),
    "--copy-dirlinks": ("-a keeps links, and those to folders too", "-L follows them all"),
    "--remote-option": ("no rsync runs at the far end", "leave it out"),
    "--open-noatime": ("reading sets the time of the last use", "leave it out"),
    "--crtimes": ("the time of creation cannot be set on Linux", "leave it out"),
    "-B": ("pscp compares pieces of a size of its own; its -B asks nothing", "leave it out"),
    "--stop-after": ("a copy has no end in time", _ENDED),
    "--stop-at": ("a copy has no end in time", _ENDED),
    "--compress-level": ("ssh compresses, at its own level", "-C"),
    "--compress-choice": ("ssh compresses, in its own way", "-C"),
    "--skip-compress": ("ssh compresses all it sends, or nothing", "leave it out"),
    "--checksum-choice": (
        "both ends choose the fastest hash that they have",
        "leave it out; -s compares SHA-256s as well",
    ),
    "--old-args": ("a far source is one path, or a pattern, as with scp", "leave it out"),
    "--blocking-io": ("that is about rsh, and pscp runs ssh", "leave it out"),
    "--copy-as": ("what is at the far end is its user's", "USER@HOST:PATH logs in as another"),
    "--max-alloc": ("pscp bounds its memory by itself", "leave it out"),
    "--write-devices": (
        "nothing is written into a device",
        "pscp-pipe HOST 'cat >/dev/DEVICE' is for one",
    ),
    "--only-write-batch": ("there are no batches", "--fan-out copies to several at once"),
    "--list-only": ("-n lists what would be copied", "-n"),
    "--usermap": ("owners are kept by name, or given", "--chown USER:GROUP"),
    "--groupmap": ("groups are kept by name, or given", "--chown USER:GROUP"),
    "--delete-missing-args": ("where a source is missing nothing is deleted", "delete it by hand"),
    "--iconv": ("names are kept byte for byte", "leave it out"),
    "--ignore-missing-args": ("a missing source fails", "leave it out"),
    "--super": ("what root may, root does anyway", "root@HOST:PATH logs in as root"),
    "--fake-super": ("owners are kept as root alone", "root@HOST:PATH logs in as root"),
    "--keep-dirlinks": (
        "nothing is written through a link in DEST",
        "DEST itself may be a link: one copy for each",
    ),
    "--executability": ("modes are kept whole", _KEPT),
}  # fmt: skip
_WHOLE = {
    "-T": "--temp-dir", "-K": "--keep-dirlinks", "-I": "--ignore-times", "-E": "--executability",
    "--no-p": "--no-perms", "--no-o": "--no-owner", "--no-g": "--no-group",
    "--no-t": "--no-times", "--no-l": "--no-links", "--no-devices": "--no-D",
    "--no-specials": "--no-D", "-M": "--remote-option", "-N": "--crtimes", "-y": "--fuzzy",
    "-k": "--copy-dirlinks", "-@": "--modify-window", "--append-verify": "--append",
    "--time-limit": "--stop-after", "--zl": "--compress-level", "--zc": "--compress-choice",
    "--cc": "--checksum-choice", "--write-batch": "--only-write-batch",
    "--read-batch": "--only-write-batch",
}  # fmt: skip
_EXPLAINED |= {short: _EXPLAINED[whole] for short, whole in _WHOLE.items()}
# Letters of ours that take a value, and of rsync's that take none.
_NOT_THEIRS = {
    "-b": "rsync's -b is --backup here",
    "-J": "-J is for a jump host; rsync's -J is about links' times, which -a keeps",
    "-o": "-o is for ssh's KEY=VALUE; rsync's -o is about owners, which root's -a keeps",
    "-F": "-F is for an ssh_config; rsync's -F is --exclude here",
    "-S": "-S is for the ssh program; rsync's -S is so anyway: leave it out",
}
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
            found += _long(word, left, words, actions)
        else:
            kept, flags = _short(word[1:], left, actions, _has_archive(words))
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


def _has_archive(words: Sequence[str]) -> bool:
    return any(re.fullmatch("--archive|-[^-]*a.*", word) for word in words)


def _long(word: str, left: list[str], words: Sequence[str], actions: Actions) -> list[str]:
    name, equals, value = word.partition("=")
    if name in _SAID_ANYWAY or (name in _OF_ARCHIVE and _has_archive(words)):
        return []
    if name in _OF_ARCHIVE:
        raise UsageError(f"{name}: that is kept with -a, and only then", _KEPT)
    if name == "--force" and any(each.startswith("--del") for each in words):
        return []  # rsync's: a folder goes with what is in it
    if name in _NAMED_HERE and name not in actions:
        return [_NAMED_HERE[name]]
    if name == "--bwlimit":
        return ["--limit", str(_kbit_s(value if equals else left.pop(0) if left else ""))]
    if name in _EXPLAINED and name not in actions:
        _explain(name, value)
    if name not in actions or equals or actions[name].nargs == 0:
        return [word]
    if name == "--progress" and left and _is_place(left[0]):
        return []  # rsync's, which takes no value
    return [word, left.pop(0)] if left else [word]


def _short(
    letters: str, left: list[str], actions: Actions, has_archive: bool
) -> tuple[list[str], str]:
    """Return what a word of short options becomes, and its flags."""
    flags = ""
    if port := re.fullmatch("p([0-9]{2,})", letters):  # as ssh has it; -p4 is -p -4
        raise UsageError(f"-{letters}: -p takes no value", f"the port is -P {port[1]} here")
    for place, letter in enumerate(letters):
        name, rest = f"-{_OTHER_NAMES.get(letter, letter)}", letters[place + 1 :]
        if has_archive and letter in _LETTERS_OF_ARCHIVE:
            continue
        _check_letter(letter, rest, left, has_archive)
        if letter == "P" and not rest and left and _is_place(left[0]):
            break  # rsync's --partial --progress; ours takes a port
        if name not in actions and name in _EXPLAINED:
            _explain(name, rest or (left[0] if left else ""))
        if name in actions and actions[name].nargs != 0:
            before, value = _as_words(flags), [rest] if rest else left[:1]
            if before != ["-h"]:  # as "-host:b" has it
                _check_value(name, "".join(value), is_in_group=place > 0)
            del left[: not rest]
            return [*before, name, *value], flags
        flags += name[1]
    return _as_words(flags), flags


def _check_letter(letter: str, rest: str, left: Sequence[str], has_archive: bool) -> None:
    """Raise UsageError where rsync's letter was meant, which takes a value, and none here."""
    value = rest or (left[0] if left else "")
    is_size = re.fullmatch("[0-9]{2,}[KMG]?|[0-9][KMG]", value, re.IGNORECASE)  # -B4 is -B -4
    if letter == "B" and is_size and not os.path.lexists(value):
        _explain("-B", value)
    # A source that is a folder here is no reason for -T, which is about the far end's names.
    is_folder = has_archive and not rest and len(left) > 2 and os.path.isdir(value)
    if letter == "T" and (rest[:1] in ("/", ".") or is_folder):
        _explain("-T", value)


def _check_value(name: str, value: str, *, is_in_group: bool) -> None:
    """Raise UsageError where rsync's letter was meant, which takes no value."""
    if name == "-i" and value and not _may_be_key(value):
        what = f"-i takes a private key here, and {value!r} is no file"
        raise UsageError(what, "rsync's -i is -vv here")
    is_source = not value[:1].isdigit() if name == "-b" else os.path.isdir(value)
    if name == "-J":  # a host may have the name of a folder here; who means it gives -J by itself
        is_source = is_in_group and os.path.lexists(value)
    elif name == "-o":
        is_source = not re.search(r"[=\s]", value)
    if name in _NOT_THEIRS and value and is_source:
        raise UsageError(f"{name} takes a value here, and not {value!r}", _NOT_THEIRS[name])


def _may_be_key(value: str) -> bool:
    """May it name a key, or one that an agent has, of which only the public half is a file?"""
    path = os.path.expanduser(value)
    return "%" in path or "${" in path or any(map(os.path.exists, (path, f"{path}.pub")))


def _as_words(flags: str) -> list[str]:
    said = {*_WITH_ARCHIVE, *_SAID_ANYWAY, *("h" if {*flags} & {*"ar"} else "")}  # rsync's -avh
    kept = "".join(each for each in flags if each not in said)
    return [f"-{kept}"] if kept else []


def _explain(name: str, value: str) -> NoReturn:
    what, hint = _EXPLAINED[name]
    if name == "-e" and (port := re.search(r"ssh .*-p *([0-9]+)", value)):
        hint = f"the port is -P {port[1]} here; other options of ssh: -i FILE, -o KEY=VALUE"
    names = f"{name}, {_WHOLE[name]}" if name in _WHOLE else name
    raise UsageError(f"{names}: {what}", hint)


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

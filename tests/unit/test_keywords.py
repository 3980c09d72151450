"""A call's errors name options by their keywords, a command's as they are typed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pscp
from pscp.cli import copy, zfs
from pscp.ground import errors
from pscp.jobs.toml import config, schema
from pscp.options.keywords import as_keywords, as_typed, in_keywords, said
from pscp.options.option_rows import Row
from pscp.options.options import ROWS

PACKAGE = Path(pscp.__file__).parent
# What only a command says, and the tables of options.
OF_COMMANDS = re.compile(
    r"cli/|jobs/|serve/|options/(habits|keywords|arguments|.*_arguments|.*_options)\.py"
)
# Words of other programs' command lines, and options that there are no more.
OTHERS = {
    "--inplace", "--rcvbuf", "--sndbuf", "--yes", "--force", "--version", "--max-", "--min-",
    "--nthreads", "--no-dashboard",
}  # fmt: skip
LONG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
ERRORS = [each for each in vars(errors).values() if isinstance(each, type)]


def texts() -> Iterator[str]:
    """Every text in the source that may name an option, and is no docstring."""
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text("utf-8")
        if "--" not in source or OF_COMMANDS.match(path.relative_to(PACKAGE).as_posix()):
            continue
        tree = ast.parse(source)
        alone = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
        for each in ast.walk(tree):
            is_text = isinstance(each, ast.Constant) and isinstance(each.value, str)
            if is_text and id(each) not in alone:
                yield each.value  # type: ignore[attr-defined]


def test_every_option_that_a_message_names_has_its_keyword() -> None:
    left = {word for text in texts() for word in LONG.findall(as_keywords(text))}
    of_verify = {"--strict", "--times", "--repair", "--signer", "--sign", "--allowed-signers"}
    assert left - OTHERS - of_verify == set()


@pytest.mark.parametrize(
    "kind", [each for each in ERRORS if issubclass(each, errors.PscpError) and each.hint]
)
def test_no_hint_has_a_letter_of_the_command_line(kind: type[errors.PscpError]) -> None:
    said_of = re.sub(r"\b(ssh|zfs) [^;]*", "", as_keywords(kind.hint))  # but to try with those
    assert not re.search(r"(?<![\w-])--?[a-zA-Z]", said_of)


@pytest.mark.parametrize(
    ("typed", "called"),
    [
        ("try again; --retry-for 30m keeps trying", "try again; retry_for_s=1800 keeps trying"),
        ("--mkpath makes the folders", "mkpath makes the folders"),
        ("--no-resume does not go with -u", "resume=False does not go with update"),
        ("leave out --remote sftp", 'leave out remote="sftp"'),
        ("or --zfs-command 'sudo zfs'", 'or zfs_command="sudo zfs"'),
        ("or with -o ForwardAgent=yes", 'or with ssh_options=["ForwardAgent=yes"]'),
        ("--password-file FILE reads it", "password_file reads it"),
        ("add --mount --keep-mountpoints", "add mount keep_mountpoints"),
        ("`pscp --clean` removes those", "pscp.clean() removes those"),
        ("ls -l shows it; -r copies it", "ls -l shows it; recursive copies it"),
        ("make room (zfs list -o space); -n", "make room (zfs list -o space); dry_run"),
        ('such as "uname -s" there', 'such as "uname -s" there'),
        (
            "try: ssh -F /c -o A=ask HOST true; --retry-for 30m keeps trying",
            "try: ssh -F /c -o A=ask HOST true; retry_for_s=1800 keeps trying",
        ),
        ("then run this command again", "then make this call again"),
    ],
)
def test_what_an_option_is_called(typed: str, called: str) -> None:
    assert as_keywords(typed) == said(typed) == called
    with as_typed():
        assert said(typed) == typed


def test_the_letters_of_a_far_program_stay() -> None:
    with pytest.raises(pscp.CopyError) as raised, in_keywords():
        raise pscp.CopyError("zfs: must specify -F; --delete is on", "use -r")
    assert raised.value.text == "zfs: must specify -F; delete is on\nuse recursive"


def test_a_copy_that_runs_is_waited_for_by_a_keyword() -> None:
    with pytest.raises(pscp.CopyRunning) as raised, in_keywords():
        raise pscp.CopyRunning("it runs")
    assert raised.value.hint == "wait=True waits for it"
    with as_typed(), pytest.raises(pscp.CopyRunning) as raised, in_keywords():
        raise pscp.CopyRunning("it runs")
    assert raised.value.hint == errors.CopyRunning.hint


# Each option refuses some of these, in Python, typed, and in a file.
WRONG: tuple[object, ...] = ({}, -1, 3.5, "\ud800", b"x", ("",))
TYPED = ("", "0", "a\tb", "999999999d", "9999999T", "9" * 18)


def refused(call: Callable[[Any], object], values: Iterable[object]) -> list[str]:
    """The messages of the values that a call refuses; one at least."""
    found = []
    for value in values:
        try:
            call(value)
        except errors.UsageError as error:
            found.append(error.message)
    assert found
    return found


@pytest.mark.parametrize(("name", "row"), [(name, row) for name, _, row in ROWS.values()])
def test_a_value_that_is_wrong_is_told_by_the_name_of_its_option(
    name: str, row: Row, tmp_path: Path
) -> None:
    """The keyword in Python, the word on the command line, the key in jobs.toml."""
    for said_of in refused(lambda value: pscp.Options(**{name: value}), WRONG):
        assert re.match(rf"{name}\b", said_of)
    is_copied = "pscp" in (row.commands or row.group.commands)
    parse = copy.parse if is_copied else zfs.parse
    file = tmp_path / "jobs.toml"

    def typed(word: str, value: object) -> object:
        return parse([f"{word}={value}", "a", "h:b"])

    def written(word: str, value: object) -> object:
        kind = "sources" if is_copied else "datasets"
        text = f"destinations = 'h:b'\n{kind} = 'a'\n{word[2:]} = {json.dumps(value)}\n"
        file.write_text(f"[job.a]\n{text}")
        return config.load(str(file))

    for word in (flag.names[-1] for flag in row.flags):
        with as_typed():
            for said_of in refused(partial(typed, word), TYPED):
                assert re.match(rf"(-\w+/)?{word}\b", said_of)
        if word[2:] in schema.OPTIONS:
            for said_of in refused(partial(written, word), TYPED):
                assert re.match(rf"\S+:4: job\.a(\.|: ){word[2:]}\b(?!.*{word})", said_of)

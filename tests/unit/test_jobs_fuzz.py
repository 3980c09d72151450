"""jobs.toml made at random: an error with lines or a plan, and no command that was not written.

Not here: what each mistake is called (test_jobs_config.py).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pscp import UsageError
from pscp.jobs.toml import schema
from pscp.jobs.toml.config import load
from pscp.jobs.toml.job import Job
from pscp.toml.positions import lines_of

KEYS = sorted({*schema.OWN, *schema.OPTIONS, *schema.REFUSED, "job", "host", "defaults"})
COMMANDS = ("before", "after-success", "after-failure", "sources-command")
RANDOM = settings(
    max_examples=100,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink such texts takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

hostile = st.sampled_from(
    ["-oProxyCommand=x", "--", "-", "a b", "$(x)", "`x`", "a\nb", "\0", "~", "~x/y", "*", "'", '"',
     "h:x", "-h:x", "h:-x", "ssh://h:0/", "../..", "\u202e", "none", "else", "", "5", "10min", "1G"]
)  # fmt: skip
taken = st.sampled_from(
    ["a b", "$(x)", "`x`", "a\nb", "*", "'", '"', "./-x", "~", "h:-x", "é", "\x1b[0m"]
)
texts = hostile | st.text(max_size=8)
scalars = texts | st.booleans() | st.integers() | st.floats()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
mostly = taken | taken | taken | texts
examples = {key: each.example for key, each in schema.OWN.items() if key != "depends-on"}
FREE = ("identity", "ssh-option", "exclude", "config", "files-from", "password-file", "suffix")
FLAGS = ("archive", "checksum", "compress", "delete", "no-resume", "relative", "strong", "update")


@st.composite
def sound_jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A table of a job that is sound, or nearly."""
    found: dict[str, Any] = {}
    for key in draw(
        st.lists(st.sampled_from([*FREE, *FLAGS, *examples, *KEYS]), max_size=3, unique=True)
    ):
        if key in FREE:
            found[key] = draw(mostly)
        elif key in FLAGS:
            found[key] = draw(st.booleans())
        else:
            found[key] = examples.get(key, draw(scalars) if draw(st.booleans()) else True)
    kind = draw(st.sampled_from(["sources", "sources-command"]))
    found |= {kind: draw(st.lists(mostly, min_size=1, max_size=2, unique=True))}
    found["destinations"] = draw(st.sampled_from([["h:x"], ["h:x", "i:y/"], ["h:x", "/z"]]))
    for key in COMMANDS[:3]:
        if draw(st.booleans()):
            found[key] = draw(mostly | st.lists(mostly, min_size=1, max_size=3))
    return found


several = st.fixed_dictionaries(
    {"job": st.dictionaries(st.sampled_from("abc"), sound_jobs(), min_size=1, max_size=2)},
    optional={
        "defaults": st.dictionaries(st.sampled_from(KEYS), values, max_size=2),
        "host": st.dictionaries(texts, st.dictionaries(st.sampled_from(KEYS), values, max_size=2)),
        "more": values,
    },
)
alone = st.fixed_dictionaries({"job": st.fixed_dictionaries({"a": sound_jobs()})})
documents = alone | several
toml_ish = st.lists(
    st.sampled_from(
        ["[job.a]", "[", "]", "[[", "]]", "{", "}", "=", ",", ".", "\n", '"', "'", '"""', "'''",
         "#", "\\", " ", "true", "5", "1979-05-27", "0x", "é", "\r", *KEYS]
    ),
    max_size=60,
).map("".join)  # fmt: skip


def toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return _text(value) if isinstance(value, str) else str(value).lower()


def _text(text: str) -> str:
    """A basic string: what JSON escapes by pairs, TOML does not."""
    return re.sub(r"\\ud[89ab]..\\ud[c-f]..", lambda m: json.loads(f'"{m[0]}"'), json.dumps(text))


def written(document: Mapping[str, Any]) -> str:
    lines = []
    for name, value in document.items():
        if name in ("job", "host") and isinstance(value, Mapping):
            for inner, table in value.items():
                lines.append(f"[{name}.{_text(inner)}]")
                lines += [f"{_text(key)} = {toml(each)}" for key, each in table.items()]
    top = [f"{n} = {toml(v)}" for n, v in document.items() if n not in ("job", "host")]
    return "\n".join([*top, *lines]) + "\n"


def jobs_of(folder: Path, content: bytes) -> dict[str, Job]:
    """The jobs of a file, or none where its mistakes were told with a line each."""
    file = folder / "jobs.toml"
    file.write_bytes(content)
    try:
        return load(str(file)).jobs
    except UsageError as error:
        for line in error.message.split("\n"):
            assert re.fullmatch(rf"{re.escape(str(file))}:[0-9]+: [^\n]+", line), line
            place = int(line.removeprefix(f"{file}:").partition(":")[0])
            assert 1 <= place <= content.count(b"\n") + 1
        return {}


def assert_only_what_was_written(text: str, jobs: Mapping[str, Job]) -> None:
    document = tomllib.loads(text) if jobs else {}
    for name, job in jobs.items():
        said = {**document.get("defaults", {}), **document["job"][name]}
        made = (job.before, job.after_success, job.after_failure, job.sources_command)
        for key, command in zip(COMMANDS, made, strict=True):
            wanted = said.get(key)
            if isinstance(wanted, list):
                wanted = tuple(wanted)
            elif key == "sources-command":
                wanted = ("/bin/sh", "-c", wanted) if wanted else ()
            assert command == wanted
        for chosen in (job.chosen(each) for each in job.destinations):
            assert all(re.match("--[a-z]", word) for word in chosen.words)
            for word in (*chosen.options.identities, *chosen.options.bind):
                assert not word.startswith("-")
            assert not (chosen.options.jump or "").startswith("-")
        assert not any(each.startswith("-") for each in (*job.sources, *job.destinations))


def assert_each_value_has_a_line(text: str) -> None:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        pytest.fail(f"this test writes TOML: {text}")
    lines, rows = lines_of(text), text.split("\n")

    def look(place: tuple[str | int, ...], value: Any) -> None:
        assert lines[place] <= len(rows)
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in pairs:
            assert (*place, key) in lines
            if isinstance(each, dict | list):
                look((*place, key), each)

    look((), found)
    for name in found.get("job", {}):
        assert rows[lines["job", name] - 1] == f"[job.{_text(name)}]"
        for key in found["job"][name]:
            assert rows[lines["job", name, key] - 1].startswith(f"{_text(key)} = ")


@RANDOM
@given(documents, st.data())
def test_a_file_that_may_be_sound_and_the_same_with_something_changed(
    tmp_path: Path, document: dict[str, Any], data: st.DataObject
) -> None:
    text = written(document)
    assert_each_value_has_a_line(text)
    assert_only_what_was_written(text, jobs_of(tmp_path, text.encode()))
    at = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 12))
    changed = text[:at] + data.draw(toml_ish | texts) + text[at + length :]
    jobs = jobs_of(tmp_path, changed.encode("utf-8", "surrogatepass"))
    assert_only_what_was_written(changed, jobs)

"""The forms of manifests: what is written is read again, and what is malformed is refused.

Not here: what a copy lists, and pscp-verify (../e2e/test_manifests.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pscp.endpoint.reading.paths import to_text
from pscp.ground.errors import BadManifest, UsageError
from pscp.manifests import formats
from pscp.manifests.formats import BAGIT, CHUNK_BYTES, JSONL, SHA256SUM, Manifest, Record

SLOW_HERE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
DIGEST = hashlib.sha256(b"").hexdigest()
NAMES = st.binary(min_size=1, max_size=40).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: to_text(b"/".join(names)))
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)
HEADER = formats.header_line("2026-01-02T03:04:05Z", ["data"], "host:", "/home/x")


def written(path: Path, form: str, records: list[Record], failed: int = 0) -> Path:
    total = sum(record.size_bytes or 0 for record in records)
    lines = [HEADER] if form == JSONL else []
    lines += [formats.line_of(record, form) for record in records]
    path.write_bytes(b"".join([*lines, formats.end_line(form, len(records), total, failed)]))
    return path


def read(path: Path) -> list[Record]:
    with contextlib.closing(Manifest(str(path))) as manifest:
        return list(manifest.records())


@st.composite
def some_records(draw: st.DrawFn) -> list[Record]:
    found = []
    for path in draw(st.lists(PATHS, unique=True, max_size=4)):
        count = draw(st.integers(0, 3))
        size_bytes = draw(st.integers(max(0, count - 1) * CHUNK_BYTES + 1, count * CHUNK_BYTES + 1))
        count = -(-size_bytes // CHUNK_BYTES)
        chunks = tuple(draw(DIGESTS) for _ in range(count)) if count > 1 else ()
        mtime_ns = draw(st.integers(-(1 << 63), (1 << 63) - 1))
        others = (
            Record(path, 0, mtime_ns, "", (), "link", draw(PATHS)),
            Record(path, 0, None, "", (), "fifo"),
            Record(path, 0, None, "", (), "device", "c 1:3"),
        )
        found.append(
            draw(
                st.sampled_from(
                    [Record(path, size_bytes, mtime_ns, draw(DIGESTS), chunks), *others]
                )
            )
        )
    return found


@SLOW_HERE
@given(records=some_records(), failed=st.integers(0, 2))
def test_json_lines_are_read_as_they_were_written(
    tmp_path: Path, records: list[Record], failed: int
) -> None:
    path = written(tmp_path / "m", JSONL, records, failed)
    assert read(path) == records
    path.read_bytes().decode("ascii")
    for line in path.read_text().splitlines():
        assert json.loads(line).keys() & {"format", "sha256", "kind", "whole"}
    with contextlib.closing(Manifest(str(path))) as manifest:
        assert manifest.is_whole == (failed == 0)


@SLOW_HERE
@given(records=some_records(), form=st.sampled_from([SHA256SUM, BAGIT]))
def test_the_other_forms_keep_paths_and_digests(
    tmp_path: Path, records: list[Record], form: str
) -> None:
    name = {SHA256SUM: "m.sha256", BAGIT: "manifest-sha256.txt"}[form]
    kept = []
    for record in records:
        with contextlib.suppress(UsageError):
            formats.line_of(record, form)
            kept.append(record)
    assert form == BAGIT or kept == records
    kept = [each for each in kept if each.kind == "file"]  # they can say nothing else
    before = formats.PAYLOAD if form == BAGIT else ""
    if not kept:
        return  # what lists nothing is refused
    found = read(written(tmp_path / name, form, kept))
    assert [(each.path, each.digest) for each in found] == [
        (before + each.path, each.digest) for each in kept
    ]


@pytest.mark.parametrize("target", ["", "a\0b", "\ud800", "x" * 200_000])
def test_a_target_that_a_far_end_has_made_up_is_not_listed(target: str) -> None:
    with pytest.raises(UsageError, match="has a target that cannot be"):
        formats.line_of(Record("link", 0, 0, "", (), "link", target), JSONL)


@SLOW_HERE
@given(name=NAMES)
def test_a_line_is_what_sha256sum_writes(tmp_path: Path, name: bytes) -> None:
    folder = tmp_path / "one"
    folder.mkdir(exist_ok=True)
    path = folder / to_text(name).encode("utf-8", "surrogateescape").decode(
        errors="surrogateescape"
    )
    path.touch()
    try:
        said = subprocess.run(
            ["sha256sum", "--", name], cwd=folder, capture_output=True, check=True
        ).stdout
        assert formats.line_of(Record(to_text(name), 0, 0, DIGEST, ()), SHA256SUM) == said
    finally:
        path.unlink()


def record(**values: Any) -> bytes:
    whole = {"path": "a", "size": 1, "mtime_ns": 1, "sha256": DIGEST}
    return formats.json_line({k: v for k, v in (whole | values).items() if v is not None})


END = formats.end_line(JSONL, 1, 1, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "1: the line is cut short"),
        (b"{\n", "1: is not JSON"),
        (b"", "1: is no manifest, but empty"),
        (b"[1]\n", "1: is no line of a manifest"),
        (b'{"a": 1}\n', '1: does not begin a manifest: "format"'),
        (HEADER.replace(b'"version":2', b'"version":3'), "1: has version 3; this pscp knows 1 "),
        (HEADER.replace(b'"sha256"', b'"md5"'), "1: has digests of 'md5'"),
        (HEADER.replace(b"4194304", b"1"), '1: "chunk_bytes" is no possible number'),
        (HEADER, "2: the manifest is cut short"),
        (HEADER + record(), "3: the manifest is cut short"),
        (HEADER + record() + END[:-1], "3: the line is cut short"),
        (HEADER + record() + END + record(), "4: something comes after the line that ends"),
        (HEADER + record(size=2) + END, "3: ends a manifest of other files"),
        (HEADER + record() * 2 + END, '3: "a" is listed twice'),
        (HEADER + b"[" * 100_000 + b"\n", "2: is not JSON"),
        (HEADER + b"[]\n", "2: is no JSON object"),
        (HEADER + record(path="../a"), '2: "../a" is not the path of a file below the root'),
        (HEADER + record(path="/etc/passwd"), "2: "),
        (HEADER + record(path="a/../../b"), "2: "),
        (HEADER + record(path="a//b"), "2: "),
        (HEADER + record(path=""), "2: "),
        (HEADER + record(path="a\0b"), "2: "),
        (HEADER + record(path="a" * 2_000_000), '2: "aaaa'),
        (HEADER + record(path="\ud800"), '2: has neither a "path" nor'),
        (HEADER + record(path=None), '2: has neither a "path" nor'),
        (HEADER + record(path_base64="YQ=="), '2: has neither a "path" nor'),
        (HEADER + record(path=None, path_base64="!"), '2: has neither a "path" nor'),
        (HEADER + record(path=None, path_base64="Li4="), '2: ".." is not the path'),
        (HEADER + record(size=-1), '2: "size" is no possible number'),
        (HEADER + record(size=1 << 63), '2: "size" is no possible number'),
        (HEADER + record(size=True), '2: "size" is no possible number'),
        (HEADER + record(mtime_ns="1"), '2: "mtime_ns" is no possible number'),
        (HEADER + record(sha256=DIGEST[1:]), "2: has a digest that is not 64 hex digits"),
        (HEADER + record(sha256=DIGEST + "\n"), "2: has a digest that is not 64 hex digits"),
        (HEADER + record(size=1 << 62), '2: "chunks" is no list of the 1099511627776 digests'),
        (HEADER + record(chunks=[DIGEST]), '2: "chunks" is no list of the 1 digests'),
        (HEADER + record(kind="door"), '2: "kind" is none of'),
        (HEADER + record(kind="link"), '2: has neither a "target" nor'),
        (HEADER + record(kind="link", target=""), "2: has a target that no link can have"),
        (HEADER + record(kind="link", target="a\0b"), "2: has a target that no link can have"),
        (HEADER + record(kind="link", target="a", mtime_ns=None), '2: "mtime_ns" is no possible'),
        (HEADER + record(kind="fifo", path="../a"), '2: "../a" is not the path'),
        (b"# nothing\n", "1: lists no file"),
        (DIGEST.encode() + b"  ../a\n", '1: "../a" is not the path'),
        (b"\\" + DIGEST.encode() + b"  \\x\n", "1: has a backslash that escapes nothing"),
        (DIGEST.encode() + b"  a\n" + DIGEST.encode() + b" *./a\n", '2: "a" is listed twice'),
    ],
)
def test_what_is_malformed_is_refused_with_its_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "m"
    path.write_bytes(content)
    with pytest.raises(BadManifest) as caught:
        read(path)
    assert f"{path}:{message}" in caught.value.message


def test_a_manifest_that_is_not_there_is_no_bad_one(tmp_path: Path) -> None:
    """As with any other file that is named and not there."""
    for path, why in ((tmp_path / "nothing", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError, match=f"{path}: {why}") as raised:
            read(path)
        assert type(raised.value) is UsageError and "on this machine" in raised.value.hint


def test_the_form_goes_by_the_name() -> None:
    for name, form in (
        ("m", JSONL), ("m.jsonl", JSONL), ("m.json", JSONL), ("SHA256SUMS", SHA256SUM),
        ("x/y.sha256", SHA256SUM), ("bag/manifest-sha256.txt", BAGIT),
    ):  # fmt: skip
        assert formats.format_of(name, None) == form
        assert formats.format_of(name, BAGIT) == BAGIT


def test_what_another_line_ends_is_kept(tmp_path: Path) -> None:
    """Files from Windows, and of older tools that make bags."""
    path = tmp_path / "manifest-sha256.txt"
    path.write_bytes(DIGEST.upper().encode() + b" data/100%25\r\n")
    assert read(path) == [Record("data/100%", None, None, DIGEST, ())]

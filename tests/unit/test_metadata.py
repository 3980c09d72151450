"""metadata.py: what is read of a file, and metadata that a far end has made up.

Not here: what arrives of it (../e2e/test_copy_metadata.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pscp.endpoint.reading import metadata, tree
from pscp.endpoint.reading.metadata import Policy

PLAIN = tree.Rules(recursive=True, follow=False, preserve=False, archive=False, filters=())
ARCHIVE = PLAIN._replace(preserve=True, archive=True)
NS = 1_600_000_000_123_456_789


def test_what_is_read_is_what_the_rules_ask_for(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.touch()
    status = file.stat()
    full = os.fsencode(file)
    paths = full, (None, full)
    assert metadata.read(*paths, status, PLAIN) == {}
    assert metadata.read(*paths, status, PLAIN._replace(preserve=True)) == {"a": status.st_atime_ns}
    archived: dict[str, Any] = metadata.read(*paths, status, ARCHIVE)
    assert archived["o"][:2] == [status.st_uid, status.st_gid]


@pytest.mark.parametrize("extra", [{}, {"o": 1}, {"o": [1]}, {"o": ["x", "y", 1, 2]}, {"a": "x"}])
def test_metadata_of_another_shape_is_passed_over(tmp_path: Path, extra: dict[str, Any]) -> None:
    entry = tree.Entry(tree.FILE, 0, "a", 0, 0o600, NS, 1, extra)
    with open(tmp_path / "a", "wb") as file:
        metadata.apply_to_file(file.fileno(), entry, Policy(True, True, 0o022), None)
    status = (tmp_path / "a").stat()
    assert (status.st_uid, status.st_mtime_ns) == (os.getuid(), NS)

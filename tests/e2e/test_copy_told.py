"""What a reporter is told of each file, once it has come to its end.

Not here: what the command line makes of it (test_copy_words.py).
"""

from __future__ import annotations

import hashlib
import os

from e2e.ways import Way
from pscp.progress.progress import Outcome, Reporter

SMALL, LARGE = b"small", b"large" * 300_000


class Told(Reporter):
    """Keeps what it is told: (outcome, digest, whether it is new) by path."""

    wants_files = True

    def __init__(self) -> None:
        self.files: dict[str, tuple[Outcome, str, bool]] = {}

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        assert path not in self.files, "each file has one end"
        self.files[path] = outcome, digest, is_new


def test_what_becomes_of_each_file(way: Way) -> None:
    (way.source / "t").mkdir()
    for name, data in (("small", SMALL), ("large", LARGE)):
        (way.source / "t" / name).write_bytes(data)
    (way.source / "t" / "taken").write_text("where a folder is")
    (way.destination / "t" / "taken").mkdir(parents=True)
    (way.source / "t" / "link").symlink_to("small")
    digests = {f"t/{n}": hashlib.sha256(d).hexdigest() for n, d in
               (("small", SMALL), ("large", LARGE))}  # fmt: skip
    refused = {"t/taken": ("failed", "", False)}

    first = Told()
    way.copy("t", reporter=first, strong=True, archive=True)
    copied = {name: ("copied", digest, True) for name, digest in digests.items()}
    assert first.files == {**copied, "t/link": ("copied", "", True), **refused}

    os.truncate(way.source / "t" / "large", 1_400_000)
    second = Told()
    way.copy("t", reporter=second)
    changed = {"t/large": ("copied", "", False), "t/small": ("unchanged", "", False)}
    # Without -a a link is followed, and there is a link where the file is to be.
    assert second.files == {**changed, "t/link": ("copied", "", False), **refused}

    third = Told()
    way.copy("t", reporter=third, update=True, preserve=True)
    outcomes = {path: outcome for path, (outcome, *_) in third.files.items()}
    assert outcomes["t/small"] == "unchanged"  # by its size and time
    assert set(outcomes.values()) == {"unchanged", "skipped", "failed"}

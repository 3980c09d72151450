"""Values in the state folder belong to their key, whatever lies under the file's name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pscp.ground import state

KEY = ("someone", "host", 22, None)

pytestmark = pytest.mark.usefixtures("own_state")


def test_a_value_is_kept_for_its_key() -> None:
    assert state.recall_entry("hosts", "host", KEY) is None
    assert state.remember_entry("hosts", "host", KEY, {"lanes": 3})
    assert state.recall_entry("hosts", "host", KEY) == {"lanes": 3}
    assert state.recall_entry("hosts", "host", (*KEY[:3], "jump")) is None


def test_a_file_of_another_key_is_not_taken_for_this_one(own_state: Path) -> None:
    """Two keys may get one name: its number has 32 bits."""
    state.remember_entry("hosts", "host", KEY, 1)
    state.remember_entry("hosts", "other", ("other",), 2)
    [file] = (own_state / "hosts").glob("host-*")
    [other] = (own_state / "hosts").glob("other-*")
    other.replace(file)
    assert state.recall_entry("hosts", "host", KEY) is None
    state.remember_entry("hosts", "host", KEY, 3)
    assert state.recall_entry("hosts", "host", KEY) == 3


@pytest.mark.parametrize("text", ["", "[]", "7", '{"value": 1}', '{"key": null, "value": 1}'])
def test_a_damaged_file_has_no_value(own_state: Path, text: str) -> None:
    state.remember_entry("hosts", "host", KEY, 1)
    [file] = (own_state / "hosts").iterdir()
    file.write_text(text)
    assert state.recall_entry("hosts", "host", KEY) is None


@pytest.mark.parametrize("label", ["a/b", "..", "../../etc", "h\udcffst", "\n", "x" * 1000, ""])
def test_any_label_makes_a_name_in_the_folder(own_state: Path, label: str) -> None:
    assert state.remember_entry("hosts", label, (label,), label)
    assert state.recall_entry("hosts", label, (label,)) == label
    [file] = (own_state / "hosts").iterdir()
    assert json.loads(file.read_text())["value"] == label


@pytest.fixture
def generous() -> Iterator[None]:
    """The umask of many distributions, where each user has a group."""
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.usefixtures("generous")
def test_the_state_folder_is_the_user_s_alone(own_state: Path) -> None:
    """U11: another user of the group could put a link in a journal's place."""
    state.lock(str(own_state / "zfs" / "lock")).close()
    assert own_state.stat().st_mode & 0o777 == 0o700
    own_state.chmod(0o775)  # as an earlier version made it
    state.remember("x", 1)
    assert own_state.stat().st_mode & 0o777 == 0o700


def test_a_lock_is_no_link(own_state: Path) -> None:
    own_state.mkdir()
    (own_state / "file").write_text("another's")
    (own_state / "lock").symlink_to(own_state / "file")
    with pytest.raises(OSError, match="symbolic links"):
        state.lock(str(own_state / "lock"))

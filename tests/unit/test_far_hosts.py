"""What is wrong with hosts that do not see one file, and the token of a copy to several.

Not here: the hosts themselves (../faults/test_many_hosts.py).
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import pscp
from pscp.connect.connections import ConnectionRequest
from pscp.connect.spare_logins import IdleConnections
from pscp.endpoint.reading.paths import part_name, to_text
from pscp.endpoint.serving.end import End
from pscp.endpoint.writing import seen
from pscp.ground import errors
from pscp.ground.locations import parse_location
from pscp.options.options import Options
from pscp.transfer import far_hosts, one_place
from pscp.transfer.far_hosts import FarHosts
from pscp.transfer.terms import tokens
from pscp.transfer.terms.journal import path_of

SHOWN = [0, 7, 42, "made"]  # user, inode, device, text


class Asked:
    """A first host that is there, or gone, and one other that has seen this."""

    def __init__(self, looked: object, is_gone: bool = False) -> None:
        self._looked, self._is_gone = looked, is_gone

    def first(self, request: object) -> object:
        if self._is_gone:
            raise one_place._Lost
        return None

    def others(self, request: object) -> list[tuple[str, object]]:
        return [("dm2", self._looked)]

    def name(self) -> str:
        return "dm1"


def compare(asked: Any, shown: object = SHOWN, *, device: bool = False) -> None:
    one_place._compare(asked, "/in", "name", shown, device=device)


@pytest.mark.parametrize(
    ("looked", "why"),
    [
        (None, "it does not see what dm1 makes there: they share no file system"),
        ([0, 7, 42, "", True], "it sees too late what dm1 writes"),
        ([0, 7, 42, "made", False], "a lock that dm1 holds is not seen"),
        ([0, 8, 42, "made", True], "a file has another inode number than at dm1"),
        ([9, 7, 42, "made", True], "it is user 9 there, and 0 at dm1"),
        (
            {"kind": "system", "path": "/in", "message": "No locks available", "errno": 37},
            "No locks available",
        ),
    ],
)
def test_what_another_host_sees_otherwise(looked: object, why: str) -> None:
    with pytest.raises(errors.DestinationError) as raised:
        compare(Asked(looked))
    assert raised.value.message == f"dm2:/in: {why}"
    assert raised.value.hint


def test_the_device_counts_for_deletions_alone() -> None:
    looked = [0, 7, 43, "made", True]
    compare(Asked(looked))
    with pytest.raises(errors.DestinationError, match="device number"):
        compare(Asked(looked), device=True)


def test_what_was_removed_is_seen_no_more() -> None:
    compare(Asked(None), None)
    with pytest.raises(errors.DestinationError, match="still sees"):
        compare(Asked([0, 7, 42, "made", False]), None)


def test_nothing_is_wrong_with_the_others_where_the_first_host_is_gone() -> None:
    """What it held locked ended with it."""
    with pytest.raises(one_place._Lost):
        compare(Asked([0, 7, 42, "made", False], is_gone=True))


def request_of(to: str, source: str = "/data") -> Any:
    froms, place = [parse_location(source)], parse_location(to)
    job = SimpleNamespace(name="")
    return SimpleNamespace(froms=froms, to=place, job=job, is_push=place.is_remote)


def token(to: str, source: str = "/data") -> str:
    return tokens.token_of_request(request_of(to, source))


def test_the_token_is_the_same_in_any_order_and_for_those_that_had_part_in_it(
    own_state: Path,
) -> None:
    alone = {name: token(f"{name}:/in") for name in ("dm1", "dm2", "dm3")}
    assert len({*alone.values()}) == 3
    assert token("dm2,dm1:/in") == token("dm1,dm2:/in") == alone["dm1"]
    tokens.remember_token(request_of("dm2,dm1:/in"), alone["dm1"])
    assert token("dm2:/in") == token("dm3,dm2:/in") == alone["dm1"] != token("dm3:/in")
    assert token("dm2:/other") != alone["dm1"] != token("dm2:/in", "/more")
    journal = Path(path_of(alone["dm1"]))
    journal.touch()
    tokens.forget_tokens(request_of("dm2,dm1:/in"), alone["dm1"])
    assert token("dm2:/in") == alone["dm1"], "a run may go on with it"
    journal.unlink()
    tokens.forget_tokens(request_of("dm2,dm1:/in"), alone["dm1"])
    assert token("dm2:/in") == alone["dm2"] and not [*(own_state / "tokens").iterdir()]


def test_a_list_goes_on_with_what_one_of_its_hosts_began(own_state: Path) -> None:
    own = token("dm2:/in")
    own_state.mkdir(exist_ok=True)
    Path(path_of(own)).touch()
    assert token("dm1,dm2:/in") == own
    assert token("dm1,dm2:/data", "dm1:/in") == token("dm2,dm1:/data", "dm1:/in")
    assert token("/here", "dm2,dm1:/in") == token("/here", "dm1:/in")


def test_a_host_that_was_lost_does_not_remove_what_another_one_shows(tmp_path: Path) -> None:
    """Its agent may be late with what it does when it ends."""
    name = to_text(part_name(b"seen", "0123456789abcdef"))
    end, shown = End(0), tmp_path / name

    def show(text: str) -> None:
        end.answer(seen.Show(str(tmp_path), name, text), lambda *_: None)

    show("made")
    shown.unlink()
    shown.write_text("another's")
    show("")
    assert shown.read_text() == "another's"
    show("")
    show("made")
    show("")
    assert not shown.exists()


@pytest.mark.parametrize("answer", [7, [1], [0, 7, 42], {"kind": "no such"}, [[]]])
def test_an_answer_of_another_shape_is_the_far_ends_fault(answer: object) -> None:
    far = SimpleNamespace(ask=lambda request: (answer, False), ask_early=lambda request: None)
    far.early_answer, far.channel = lambda: (answer, False), SimpleNamespace()
    hosts = FarHosts(parse_location("dm1,dm2:/in"))
    hosts.place_of = lambda far: parse_location("dm1:/in")  # type: ignore[method-assign]
    asked: Any = [far, far]
    with pytest.raises(errors.ProtocolError):
        one_place._check(
            hosts, asked, lambda asking: compare(asking, asking.first(seen.Look("/in", "name")))
        )


class AChannel:
    """Stands for a channel: other than a namespace, it can be referred to weakly."""


class OneHost:
    """Connections to one host, as FarHosts uses them, which count those that were opened."""

    left_out, has_one_login = 0, False

    def __init__(self, place: object) -> None:
        self.first, self.idle, self.opened = SimpleNamespace(), IdleConnections(), 0

    def _open(self) -> Any:
        self.opened += 1
        return SimpleNamespace(channel=AChannel(), close=lambda: None)

    def take(self, options: object, note: object) -> list[Any]:
        return self.idle.take(list) or [self._open()]

    def connect(self, options: object, wanted: ConnectionRequest) -> Any:
        far = self.idle.next() or self._open()
        wanted.opened(far.channel)
        return far


def test_what_one_copy_leaves_the_next_one_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the tasks of a cluster's worker do, which follow each other for hours."""
    monkeypatch.setattr(far_hosts, "OneHost", OneHost)
    hosts = FarHosts(parse_location("dm1,dm2:/in"))
    options = Options()
    wanted: Any = ConnectionRequest(None, "", lambda channel: None)
    used: list[set[int]] = []
    for _ in range(3):
        hosts.admission = asked = Mock()  # each copy's: it may be to another place
        agents = hosts.take(options, print)
        agents += [hosts.connect(options, wanted) for _ in range(4)]
        used.append({*map(id, agents)})
        hosts.idle.give(agents)
        assert {id(call.args[0]) for call in asked.check.mock_calls} == {*map(id, agents[2:])}
    assert len(used[0]) == 6 and used[0] == used[1] == used[2]
    assert [each.connections.opened for each in hosts._members] == [3, 3]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "call",
    [
        lambda: pscp.Session("dm1,dm2"), lambda: pscp.clean("dm1,dm2:/in"),
        lambda: pscp.look("dm1,dm2:/in"), lambda: pscp.measure("dm1,dm2"),
        lambda: pscp.verify("m", "dm1,dm2:/in"),
    ],
    ids=["Session", "clean", "look", "measure", "verify"],
)  # fmt: skip
def test_only_a_copy_goes_to_several_hosts(call: Callable[[], object]) -> None:
    with pytest.raises(pscp.UsageError):
        call()


def test_what_a_killed_run_showed_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """Not what another run of this copy still shows, which has it locked, nor another copy's."""

    def shown_by(run: str, token: str = "0123456789abcdef") -> str:
        return to_text(part_name(b"seen", token + run))

    dead, live, other = shown_by("aaaaaaaa"), shown_by("bbbbbbbb"), shown_by("cccccccc", "f" * 16)
    for name in (dead, live, other):
        (tmp_path / name).touch()
    end, found = End(0), list[object]()
    with open(tmp_path / live) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for text in ("made", ""):
            request = seen.Show(str(tmp_path), shown_by("dddddddd"), text)
            end.answer(request, lambda answer, is_failed: found.append(is_failed))
    assert found == [False, False]
    assert {path.name for path in tmp_path.iterdir()} == {live, other}

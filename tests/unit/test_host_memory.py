"""What is kept of a host: lanes, advice, and ssh's configuration, each for its own key."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from pscp.connect.known.host_memory import HostMemory, PathRecord
from pscp.connect.known.host_setup import SetupSource, setup_key
from pscp.ground.locations import Location, parse_location
from pscp.ground.state import folder as state_folder
from pscp.options.options import Options, with_fields
from pscp.transports import SshSetup, transport_of

HOST = parse_location("someone@host:")
pytestmark = pytest.mark.usefixtures("own_state")


def damage(value: str) -> None:
    """Put this text in the place of the value that is kept for the host."""
    [file] = (Path(state_folder()) / "hosts").iterdir()
    key = json.loads(file.read_text())["key"]
    file.write_text(f'{{"key": {json.dumps(key)}, "value": {value}}}')


def test_another_way_to_the_host_is_another_host() -> None:
    HostMemory(HOST, Options()).remember(True, PathRecord(5, 5, 0.1))
    assert HostMemory(HOST, Options(port=2222)).recall(True) == PathRecord()
    assert HostMemory(parse_location("host:"), Options()).recall(True) == PathRecord()


def test_each_transport_is_remembered_by_itself() -> None:
    """Its library may need other lanes, know other ciphers, and not get in to use an agent."""
    paramiko, asyncssh = Options(transport="paramiko"), Options(transport="asyncssh")
    HostMemory(HOST, asyncssh).remember(True, PathRecord(3, 3, 0.1))
    HostMemory(HOST, paramiko).remember(True, PathRecord(9, 9, 0.1))
    HostMemory(HOST, paramiko).remember_sftp(True)
    HostMemory(HOST, paramiko).save_advice(9, "aes128-ctr")
    assert HostMemory(HOST, asyncssh).recall(True) == PathRecord(3, 3, 0.1)
    assert (
        HostMemory(HOST, asyncssh).advice() == (0, "")
        and not HostMemory(HOST, asyncssh).uses_sftp()
    )
    assert HostMemory(HOST, paramiko).recall(True) == PathRecord(9, 9, 0.1)


def test_sftp_is_remembered_for_a_day_and_of_that_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent keeps more of a file: neither another key's limits nor those of then may bar it."""
    HostMemory(HOST, Options(identities=("held",))).remember_sftp(True)
    assert HostMemory(HOST, Options(identities=("held",))).uses_sftp()
    assert not HostMemory(HOST, Options(identities=("free",))).uses_sftp()
    assert not HostMemory(HOST, Options()).uses_sftp()
    day_later_s = time.time() + 24 * 3600
    monkeypatch.setattr(time, "time", lambda: day_later_s)
    assert not HostMemory(HOST, Options(identities=("held",))).uses_sftp()


def test_what_auto_comes_to_is_that_transport() -> None:
    HostMemory(HOST, Options()).remember(True, PathRecord(5, 5, 0.1))
    chosen = with_fields(Options(), {"transport": transport_of(Options())})
    assert HostMemory(HOST, chosen).recall(True) == PathRecord(5, 5, 0.1)


def test_a_fixed_number_says_nothing_about_what_auto_would_come_to() -> None:
    HostMemory(HOST, Options()).remember(True, PathRecord(8, 8, 0.1))
    HostMemory(HOST, Options(connections=1)).remember(True, PathRecord(1, 1, 0.1))
    assert HostMemory(HOST, Options()).recall(True) == PathRecord(1, 8, 0.1)


def test_advice_is_kept_beside_what_copies_leave() -> None:
    assert HostMemory(HOST, Options()).advice() == (0, "")
    HostMemory(HOST, Options()).remember(True, PathRecord(5, 5, 0.1))
    assert HostMemory(HOST, Options()).save_advice(8, "aes128-ctr")
    HostMemory(HOST, Options()).remember(False, PathRecord(3, 3, 0.1))
    assert HostMemory(HOST, Options()).advice() == (8, "aes128-ctr")
    assert [HostMemory(HOST, Options()).recall(is_push).lanes for is_push in (True, False)] == [
        5,
        3,
    ]


def test_a_host_that_was_only_measured_needs_no_prompt_either() -> None:
    HostMemory(HOST, Options()).save_advice(8, "aes128-ctr")
    assert HostMemory(HOST, Options()).recall(True) == PathRecord(logins=8)


@pytest.mark.parametrize(
    ("rtt_s", "lanes"), [(0.1, 8), (0.06, 8), (0.19, 8), (0.2, 0), (0.04, 0), (0.0001, 0)]
)
def test_lanes_are_good_for_the_same_path_only(rtt_s: float, lanes: int) -> None:
    assert PathRecord(8, 8, 0.1).over(rtt_s).lanes == lanes


def test_all_near_paths_are_alike() -> None:
    assert PathRecord(3, 3, 0.0001).over(0.009).lanes == 3


def test_lanes_are_good_for_as_many_processors_and_the_same_kind_only() -> None:
    known = PathRecord(8, 16, 0.1, found_lanes=16, cpus=4)
    assert known.over(0.1, 4) == known
    assert known.over(0.1, 2) == known.over(0.1, 4, "stream ") == PathRecord(logins=8)


@pytest.mark.parametrize(
    ("known", "logins"),
    [
        (PathRecord(8, 2, 0.001), 2),
        (PathRecord(8, 0, 0.001), 2),  # too short to be measured
        (PathRecord(1, 0, 0.001), 1),
        (PathRecord(8, 8, 0.1), 8),
        (PathRecord(8, 12, 0.1), 8),
        (PathRecord(3, 0, 0.1), 3),
        (PathRecord(8), 8),  # what --measure found
    ],
)
def test_no_more_log_in_at_once_than_there_are_lanes(known: PathRecord, logins: int) -> None:
    assert known.logins_at_once == logins


def test_what_was_measured_holds_for_a_week(monkeypatch: pytest.MonkeyPatch) -> None:
    found = PathRecord(8, 8, 0.1, "bbr")
    HostMemory(HOST, Options()).remember(True, found)
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 6 * 86400)
    assert HostMemory(HOST, Options()).recall(True) == found
    HostMemory(HOST, Options()).remember(True, found._replace(logins=7))  # nothing was measured
    monkeypatch.setattr(time, "time", lambda: now_s + 8 * 86400)
    assert HostMemory(HOST, Options()).recall(True) == PathRecord(logins=7, rtt_s=0.1)
    HostMemory(HOST, Options()).remember(True, found)
    assert HostMemory(HOST, Options()).recall(True) == found


def test_many_lanes_are_believed_once_two_copies_found_them() -> None:
    """As long as another program computes, more processes get more of the processors."""
    once = PathRecord().after(8, 4e8, usual=2)
    assert once.lanes == 2
    assert once.after(6, 4e8, usual=2).lanes == 6
    assert once.after(2, 4e8, usual=2).after(8, 4e8, usual=2).lanes == 2
    assert PathRecord().after(2, 4e8, usual=8).lanes == 2


def test_what_was_usual_on_a_busy_machine_is_not_believed_on_an_idle_one() -> None:
    """Its round trips seemed longer, so eight lanes were usual."""
    known = PathRecord().after(8, 1e8, usual=8)
    assert known.believed(8).lanes == 8 and known.believed(2).lanes == 0
    once = known.after(16, 1e8, usual=8)
    assert once.believed(2).lanes == 0
    assert once.after(16, 1e8, usual=8).believed(2).lanes == 16


def test_the_rate_of_lanes_is_known_if_they_were_measured() -> None:
    twice = PathRecord().after(16, 4e8, usual=8).after(12, 3e8, usual=8)
    assert (twice.lanes, twice.lanes_bytes_s) == (12, 3e8)
    thrice = twice.after(16, 5e8, usual=8)
    assert (thrice.lanes, thrice.lanes_bytes_s) == (12, 0.0)


@pytest.mark.parametrize(
    "text",
    ["", "[", "[]", '{"push": "many"}', '{"push": [1, 2, 3]}', '{"push": ["a", 1, 0.1, ""]}',
     '{"connections": "8", "cipher": 7}', '{"connections": 1000, "cipher": "-oX=y z"}'],
)  # fmt: skip
def test_a_damaged_memory_is_no_memory(text: str) -> None:
    HostMemory(HOST, Options()).remember(True, PathRecord(5, 5, 0.1))
    HostMemory(HOST, Options()).save_advice(8, "aes128-ctr")
    damage(text)
    assert HostMemory(HOST, Options()).recall(True) == PathRecord()
    assert HostMemory(HOST, Options()).advice() == (0, "")


def test_that_no_direct_lane_was_let_in_holds_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(plane="tls")
    assert not HostMemory(HOST, options).refuses_direct()
    HostMemory(HOST, options).remember_no_direct()
    now_s = time.time()
    for passed_s, is_believed in ((3500, True), (3700, False), (-4000, False)):
        monkeypatch.setattr(time, "time", lambda passed_s=passed_s: now_s + passed_s)
        assert HostMemory(HOST, options).refuses_direct() == is_believed


# --- ssh's configuration


OPTIONS = Options(transport="openssh")


class Ssh:
    """What `ssh -G` says, and how often it was asked."""

    def __init__(self) -> None:
        self.setup, self.asked = SshSetup(offered=("aes128-ctr",)), 0

    def resolve(self, host: Location, options: Options) -> SshSetup:
        self.asked += 1
        return self.setup


@pytest.fixture
def ssh(own_state: Path) -> Ssh:
    return Ssh()


def test_what_was_remembered_is_checked_once(ssh: Ssh) -> None:
    SetupSource(ssh.resolve).get(HOST, OPTIONS)
    setup = SetupSource(ssh.resolve)
    assert not setup.has_changed(HOST, OPTIONS)  # nobody needed it yet
    setup.get(HOST, OPTIONS)
    assert not setup.has_changed(HOST, OPTIONS) and ssh.asked == 2
    assert not setup.has_changed(HOST, OPTIONS) and ssh.asked == 2


def test_what_the_far_end_says_of_its_processor_is_no_change(ssh: Ssh) -> None:
    SetupSource(ssh.resolve).get(HOST, OPTIONS)
    setup = SetupSource(ssh.resolve)
    setup.get(HOST, OPTIONS)
    setup.learn_aes("yes")
    assert setup.get(HOST, OPTIONS).ssh.far_aes is None
    setup.learn_aes(True)
    setup.learn_aes(False)
    assert setup.get(HOST, OPTIONS).ssh.far_aes is True
    assert not setup.has_changed(HOST, OPTIONS)


def test_other_options_of_ssh_are_another_way() -> None:
    """Passwords are shared by these keys, so nothing that leads elsewhere may be left out."""
    others = [
        Options(port=2222), Options(jump="gate"), Options(config_file="other"),
        Options(ssh_options=("HostName=other",)), Options(program="/other/ssh"),
    ]  # fmt: skip
    keys = {setup_key(HOST, options) for options in [OPTIONS, *others]}
    keys |= {setup_key(parse_location(text), OPTIONS) for text in ("me@host:", "other:")}
    assert len(keys) == 8

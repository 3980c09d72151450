"""ssh's configuration: taken from memory at once, asked for once, and kept for its own key."""

from __future__ import annotations

from pathlib import Path

import pytest

from pscp.connect.known.host_setup import SetupSource, setup_key
from pscp.ground.locations import Location, parse_location
from pscp.options.options import Options
from pscp.transports import SshSetup

HOST = parse_location("host:")
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

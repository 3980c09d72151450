"""The programs of connections with a library: windows, lines of known_hosts, what they load.

Not here: what they do on a connection (../conformance, ../e2e/test_transports.py).
"""

from __future__ import annotations

import base64
import socket
import subprocess
from pathlib import Path

import paramiko
import pytest

from pscp.ground.values import MIB
from pscp.serve.session import ciphers
from pscp.transports.libraries.known_hosts import HostKeyLine, known
from pscp.transports.receive_window import FIRST_BYTES, Window, most_bytes, round_trip_s
from pscp.transports.ssh_settings import Request, Settings, program_argv

# --- the receive window, over simulated paths


PACKET_BYTES = 32 * 1024


def carried(window: Window, rtt_s: float, rate_bytes_s: float, seconds: float) -> None:
    """What a path of this rate carries, with no more than a window of it each round trip."""
    now_s = 0.0
    while now_s < seconds:
        rate = min(rate_bytes_s, window.bytes / rtt_s)
        now_s += PACKET_BYTES / rate
        window.came(PACKET_BYTES, now_s)


@pytest.mark.parametrize("rtt_s", [0.02, 0.1, 0.24])
@pytest.mark.parametrize("rate_mbit", [100, 1000])
def test_it_covers_the_path_and_not_much_more(rtt_s: float, rate_mbit: int) -> None:
    window, rate = Window(rtt_s, 256 * MIB), rate_mbit * 125_000
    carried(window, rtt_s, rate, 10.0)
    assert window.bytes >= rate * rtt_s
    assert window.bytes <= max(FIRST_BYTES, rtt_s * 125_000_000, rate * rtt_s * 1.5)


def test_it_stays_as_it_is_on_a_short_path() -> None:
    window = Window(0.0001, 256 * MIB)
    carried(window, 0.0001, 1000 * MIB, 1.0)
    assert window.bytes == FIRST_BYTES


def test_memory_is_the_limit() -> None:
    window = Window(0.5, 16 * MIB)
    carried(window, 0.5, 1000 * MIB, 20.0)
    assert 12 * MIB <= window.bytes <= 16 * MIB
    assert FIRST_BYTES <= most_bytes() <= 64 * MIB


@pytest.mark.parametrize("is_stalled", [False, True])
def test_neither_a_crowded_round_trip_nor_a_consumer_that_stands_still_is_a_reason(
    is_stalled: bool,
) -> None:
    """After a stall all comes at once."""
    window = Window(0.1, 256 * MIB)
    before = window.bytes
    for round_trip in range(20):
        window.came(before if is_stalled or round_trip % 2 else 0, (round_trip + 1) * 0.1001)
        if is_stalled:
            window.stalled()
    assert window.bytes == before


def test_the_kernel_tells_the_round_trip() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as made,
    ):
        found = round_trip_s(made)
        assert found is None or 0 < found < 1
    with socket.socket() as unconnected:
        assert round_trip_s(unconnected) is None
    assert round_trip_s(None) is None


# --- lines of known_hosts


KEY = base64.b64encode(b"key").decode()


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("one,two", ["one", "two"]),
        ("ONE", ["one"]),
        ("t*", ["two", "three"]),
        ("?w?", ["two"]),
        ("*,!two", ["one", "three", "[one]:22022"]),
        ("!two", []),
        ("[one]:22022", ["[one]:22022"]),
        ("[o*]:22022", ["[one]:22022"]),
        ("[on", []),
        (",", []),
        pytest.param(paramiko.HostKeys.hash_host("two"), ["two"], id="hashed"),
        ("|1|nonsense", []),
        ("|1|a|b", []),
    ],
)
def test_a_line_is_found_by_each_of_its_names(names: str, found: list[str]) -> None:
    text = f"# {names}\n\n \t{names} ssh-x {KEY} a comment\n"
    hosts = ["one", "two", "three", "[one]:22022"]
    assert [host for host in hosts if list(known(text, host))] == found


def test_markers_are_told_and_what_is_malformed_is_left_out() -> None:
    lines = ["one ssh-x", "@revoked one", "@", "one ssh-x !", f"@revoked * ssh-x {KEY}",
             f"@cert-authority one ssh-y {KEY}", f"one ssh-z {KEY}"]  # fmt: skip
    assert list(known("\n".join(lines), "one")) == [
        HostKeyLine("@revoked", "ssh-x", b"key"),
        HostKeyLine("@cert-authority", "ssh-y", b"key"),
        HostKeyLine("", "ssh-z", b"key"),
    ]


# --- the program itself


def test_asyncssh_is_loaded_without_a_compiler(tmp_path: Path) -> None:
    """As ctypes would ask for each library that ldconfig(8) does not know."""
    for name in ("gcc", "cc", "ld"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n: >>'{tmp_path}/ran'\n")
        program.chmod(0o755)
    nowhere = Settings("", ("Port 0",), (), Request("true"), False, (), "", "", 0, 0, False)
    argv = program_argv("asyncssh", nowhere)
    subprocess.run(
        argv, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, check=False
    )
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("has_aes", [True, False, None])
def test_a_cipher_that_costs_more_is_offered_where_there_is_need_of_it(
    has_aes: bool | None,
) -> None:
    found = ciphers(has_aes)
    assert any("chacha20" in each for each in found) != bool(has_aes)
    assert any("gcm" in each for each in found)

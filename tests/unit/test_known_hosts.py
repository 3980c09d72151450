"""Which lines of known_hosts are about a host (pscp.transports.libraries.known_hosts).

Not here: what each library does about them (../e2e/test_transports.py).
"""

from __future__ import annotations

import base64

import paramiko
import pytest

from pscp.transports.libraries.known_hosts import HostKeyLine, known

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

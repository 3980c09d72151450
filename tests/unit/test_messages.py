"""What comes on a channel's standard error: what people see of it, and what is read in it."""

from __future__ import annotations

import os
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from pscp.connect.messages import Messages
from pscp.transports import Channel

SSH_V = (
    b"OpenSSH_9.2p1 Debian-2+deb12u7, OpenSSL 3.0.17 1 Jul 2025\r\n"
    b"debug1: Connecting to host [192.0.2.1] port 22.\r\n"
    b"debug1: kex: server->client cipher: aes256-ctr MAC: <implicit> compression: none\r\n"
    b"debug1: kex: client->server cipher: aes128-gcm@openssh.com MAC: <implicit>\r\n"
    b"Welcome\r\n"
    b'Authenticated to host ([192.0.2.1]:22) using "publickey".\r\n'
)


@given(st.lists(st.integers(1, len(SSH_V)), max_size=8))
def test_what_ssh_says_of_itself_is_not_shown_and_tells_the_cipher(cuts: list[int]) -> None:
    """However it is cut into what is read at once."""
    reads, writes = os.pipe()
    shown: list[str] = []
    try:
        channel = SimpleNamespace(error_fd=reads, pid=1)
        messages = Messages(cast(Channel, channel), shown.append)
        edges = [0, *sorted(set(cuts)), len(SSH_V)]
        for begin, end in pairwise(edges):
            if begin < end:
                os.write(writes, SSH_V[begin:end])
                assert messages.read()
        messages.show()
        assert (shown, messages.cipher) == (["Welcome"], "aes128-gcm@openssh.com")
        assert messages.text() == "Welcome\r\n"
    finally:
        os.close(reads)
        os.close(writes)


def test_a_line_without_an_end_is_shown_when_it_is_time() -> None:
    reads, writes = os.pipe()
    shown: list[str] = []
    try:
        messages = Messages(cast(Channel, SimpleNamespace(error_fd=reads, pid=1)), shown.append)
        os.write(writes, b"Your password expires")
        assert messages.read()
        assert messages.has_unshown
        messages.show()
        os.write(writes, b" soon\nend")
        messages.read()
        messages.show()
        assert shown == ["Your password expires", " soon", "end"]
    finally:
        os.close(reads)
        os.close(writes)

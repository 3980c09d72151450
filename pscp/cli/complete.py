"""Completes a path at the far end for a shell, over SFTP: what stands behind <TAB>.

    pscp --complete-path WORD...      the words up to the cursor: prints each word that HOST:PATH,
                                      the last of them, can become, a folder with "/" at its end
    pscp --complete-line LINE WORD    what bash knows: the line, and the part of its last word that
                                      bash replaces; prints that part alone, quoted as it is typed

A connection that --persist or the user's ControlMaster keeps is used, else a new one is made, and
ended. Nobody is asked for anything: where the answer cannot be had, nothing is printed.

Not here: the shells' part, which scripts/docs writes. Read next: ../sftp/tree.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence

from pscp.connect.known.host_setup import HostSetup, SetupSource
from pscp.connect.persistent import PersistentConnections
from pscp.ground.errors import PscpError
from pscp.ground.locations import CONTROL, parse_location
from pscp.options import arguments
from pscp.options.connection_options import OF_A_CONNECTION
from pscp.options.options import Options
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.event_loop import Loop
from pscp.sftp.protocol.packets import BadPacket
from pscp.sftp.protocol.tasks import outcomes, start
from pscp.sftp.tree import list_folder
from pscp.transports import SFTP, Channel, Control, open_channel, resolve

OFF = "PSCP_COMPLETE_REMOTE"  # 0 in the environment: no host is asked for paths

_LIMIT_S = 5  # who waits at a prompt gives up sooner or later
_NO_LINE = re.compile(f"{CONTROL}|[\ud800-\udfff]")  # what a line of a terminal cannot show


def main() -> int:
    """Print what the word can become, a line each. Returns 0."""
    form, *words = sys.argv[1:]
    is_line = form == "--complete-line"
    with contextlib.suppress(PscpError, OSError, ValueError, LookupError, BadPacket):
        if os.environ.get(OFF) != "0":
            typed, quote = words_of(words[0]) if is_line else (words, None)
            before = kept_before(typed[-1], words[1]) if is_line else ""
            for found in paths(os.path.basename(sys.argv[0]), typed):
                print(quoted(found.removeprefix(before), quote), flush=True)
    return 0


def words_of(line: str) -> tuple[list[str], str]:
    """Return the words of a line after its command, and the quote that is open at its end.

    Raises ValueError where they are not words.
    """
    for whole, quote in ((line, ""), (line.removesuffix("\\"), ""), (line + "'", "'")):
        with contextlib.suppress(ValueError):
            return shlex.split(whole)[1:], quote
    return shlex.split(line + '"')[1:], '"'


def kept_before(word: str, replaced: str) -> str:
    """Return what stands before the part that bash replaces. Raises ValueError where it is none."""
    for end in (replaced, *words_of(f"x {replaced}")[0]):
        if word.endswith(end):
            return word[: len(word) - len(end)]
    raise ValueError(replaced)


def quoted(text: str, quote: str | None) -> str:
    """Return the text as bash takes it within this quote; None: as it is."""
    if not quote:
        return text if quote is None else re.sub(r"[^\w./,:=@%+~-]", r"\\\g<0>", text)
    if quote == "'":
        found = text.replace("'", r"'\''")
    else:  # in which a backslash would not keep "!" from the history
        found = re.sub(r'[\\"$`]', r"\\\g<0>", text).replace("!", "\"'!'\"")
    return found + quote * found.endswith(quote)  # bash closes the others itself


def paths(command: str, words: Sequence[str]) -> Iterator[str]:
    """Yield what the last of the command's words can become, if it is HOST:PATH.

    Raises PscpError, OSError, BadPacket.
    """
    place = parse_location(words[-1])
    if not place.is_remote or "://" in place.text:
        return
    values, _ = parser_of(command).read([os.path.expanduser(word) for word in words[:-1]])
    of_connection = {name: values[name] for name in OF_A_CONNECTION if name in values}
    options = Options(**of_connection, batch=True, timeout_s=_LIMIT_S)
    folder, slash, begin = place.path.rpartition("/")
    channel = channel_to(SetupSource(resolve).get(place, options))
    with contextlib.closing(channel):
        for name in names_in(channel, folder + slash, begin):
            yield place.text.removesuffix(begin) + name


def parser_of(command: str) -> arguments.Parser:
    if command == "pscp-verify":
        from pscp.cli import verify  # here: it takes as long to load as all the rest

        return verify.make_parser()
    return arguments.make_parser()


def channel_to(setup: HostSetup) -> Channel:
    """Open a channel to the host's SFTP server, of a connection that is there or of a new one."""
    users = Control(setup.ssh.users_master, False)
    control = PersistentConnections().next(setup, setup.options.address(0))
    if control is None and users.path and users.is_alive():
        control = users
    return open_channel(
        setup.host, setup.options, setup.ssh, SFTP, may_prompt=False, number=0, control=control
    )


def names_in(channel: Channel, folder: str, begin: str) -> list[str]:
    """Return the names in a folder that begin so; none where the server takes too long."""
    loop = Loop()
    client = Client(channel.read_fd, channel.write_fd, loop)
    loop.ins, loop.outs = [client.incoming], [client.out]
    listing = start(asked(client, os.fsencode(folder).removeprefix(b"~/"), os.fsencode(begin)))
    end_s = time.monotonic() + _LIMIT_S
    loop.call_later(_LIMIT_S, lambda: None)
    loop.run_until(lambda: listing.done() or client.incoming.is_at_end or time.monotonic() >= end_s)
    names = listing.result() if listing.done() else []
    return [name for name in names if not _NO_LINE.search(name)]


async def asked(client: Client, folder: bytes, begin: bytes) -> list[str]:
    """Ask for the names in a folder that begin so; hidden ones only where a dot is typed."""
    await client.version
    listed = await list_folder(client, folder or b".")
    found = [
        each for each in listed if each[0].startswith(begin) and (begin or each[0][:1] != b".")
    ]
    folders = {name for name, attrs in found if attrs.is_folder}
    links = [name for name, attrs in found if attrs.is_link]
    leads = await outcomes(*(client.stat(folder + name) for name in links))
    folders |= {
        name
        for name, attrs in zip(links, leads, strict=True)
        if not isinstance(attrs, Exception) and attrs.is_folder
    }
    return [os.fsdecode(name) + "/" * (name in folders) for name, _ in found]

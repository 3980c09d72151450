"""The loop of a lane's program over SFTP, on pipes.

Read next: test_sftp_remote_hash.py.
"""

from __future__ import annotations

import os

from pscp.sftp.protocol.event_loop import Loop, ReadBuffer


class Room:
    """A decoder that keeps what came."""

    def __init__(self) -> None:
        self._room = memoryview(bytearray(64))
        self.count = 0

    def space(self) -> memoryview:
        return self._room

    def filled(self, count: int) -> None:
        self.count += count


def test_what_is_removed_by_what_was_read_before_it_is_not_read() -> None:
    """A hash program is ended, with its digests waiting, once the server's bytes prove it wrong."""
    loop, rooms = Loop(), (Room(), Room())
    pipes = [os.pipe(), os.pipe()]

    def end_the_other(mine: int) -> None:
        fd = pipes[1 - mine][0]
        loop.remove(fd)
        os.close(fd)

    for place, (read_fd, write_fd) in enumerate(pipes):

        def take(mine: int = place) -> None:
            end_the_other(mine)

        loop.ins.append(ReadBuffer(read_fd, rooms[place], take))
        os.write(write_fd, b"both are readable at once")
    loop.run_until(lambda: any(room.count for room in rooms))
    assert sorted(room.count > 0 for room in rooms) == [False, True]
    left = next(pipe for pipe, room in zip(pipes, rooms, strict=True) if room.count)
    for fd in (*left, *(write_fd for _, write_fd in pipes if write_fd not in left)):
        os.close(fd)

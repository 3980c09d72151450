"""The sockets by which further channels use a connection, and what killed runs have left of them.

Not here: the folder that they lie in (../state.py), who makes and uses them (openssh.py).
"""

from __future__ import annotations

import _socket as socket  # as in fdpass.py
import contextlib
import os
import time
from typing import NamedTuple

PROGRAM = (
    ".ask"  # behind the name of a socket: the program by which ssh asks there (connect/prompts.py)
)
_NEW_S = 60.0  # a younger one may be bound already and not listened on yet


class Control(NamedTuple):
    """The socket by which further channels use a connection (ssh_config(5), ControlPath)."""

    path: str
    is_master: bool  # of the connection that has it; else it is of one that rides on it

    def is_alive(self) -> bool:
        """Does the connection's ssh listen there?"""
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        probe.setblocking(False)
        try:
            probe.connect(self.path)
            return True
        except BlockingIOError:  # one that was stopped, and has many callers
            return True
        except OSError:
            return False
        finally:
            probe.close()


def sweep(folder: str) -> None:
    """Remove the sockets and programs that killed runs have left: nobody listens there any more."""
    with contextlib.suppress(OSError):
        names = [each for each in os.listdir(folder) if not each.startswith(".")]  # fences
        for name in {each.removesuffix(PROGRAM) for each in names}:
            path = os.path.join(folder, name)
            if _is_old(path) and _is_old(path + PROGRAM) and not Control(path, True).is_alive():
                for each in (path, path + PROGRAM):
                    with contextlib.suppress(OSError):
                        os.unlink(each)


def _is_old(path: str) -> bool:
    """Was the file made long ago, or is it not there?"""
    try:
        return time.time() - os.lstat(path).st_mtime > _NEW_S
    except OSError:
        return True

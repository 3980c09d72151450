"""The sockets by which further channels use a connection, and the end of those of killed runs.

Not here: their folder (../ground/state.py), who makes and uses them (openssh.py).
"""

from __future__ import annotations

import _socket as socket  # as in fdpass.py
import contextlib
import os
import time
from typing import NamedTuple

PROGRAM = ".ask"  # ends the name of the program by which ssh asks at a socket (prompt_server.py)
_NEW_S = 60.0  # in a younger socket nobody may listen yet
USERS = "ssh_config"  # in place of a time: the connection is one that the user's own ssh keeps


class Control(NamedTuple):
    """The socket by which further channels use a connection (ssh_config(5), ControlPath)."""

    path: str
    is_master: bool  # for the connection that makes the socket; else for a further channel of it
    persist: str = ""  # how long the connection outlives its channels; "": it ends with its own

    @property
    def is_kept(self) -> bool:
        """Tell whether this is for a channel of a connection that outlives its channels."""
        return bool(self.persist) and not self.is_master

    def is_alive(self) -> bool:
        """Return whether the connection's ssh listens there."""
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        probe.setblocking(False)
        try:
            probe.connect(self.path)
            return True
        except BlockingIOError:  # an ssh that was stopped, with a full backlog
            return True
        except OSError:
            return False
        finally:
            probe.close()


def ended_with_us(program: str, path: str) -> list[str]:
    """Return the options by which an ssh without a command ends when this process does, also by
    SIGKILL: a command of its own reads its standard input, which ssh itself does not, to the end.
    """
    import shlex  # here: few copies have such an ssh

    asking = shlex.join([program, "-Fnone", f"-S{path}", "-Oexit", "pscp"])
    waiting = f"exec 3<&0; (cat <&3; {asking}) >/dev/null 2>&1 &"
    local = f"exec sh -c {shlex.quote(waiting)}".replace("%", "%%")
    return ["-oPermitLocalCommand=yes", f"-oLocalCommand={local}"]


def sweep(folder: str) -> None:
    """Remove the sockets and programs that killed runs have left: nobody listens there."""
    with contextlib.suppress(OSError):
        names = [each for each in os.listdir(folder) if not each.startswith(".")]  # fences
        for name in {each.removesuffix(PROGRAM) for each in names}:
            path = os.path.join(folder, name)
            if _is_old(path) and _is_old(path + PROGRAM) and not Control(path, True).is_alive():
                for each in (path, path + PROGRAM):
                    with contextlib.suppress(OSError):
                        os.unlink(each)


def _is_old(path: str) -> bool:
    """Return whether the file was made long ago, or is not there."""
    try:
        return time.time() - os.lstat(path).st_mtime > _NEW_S
    except OSError:
        return True

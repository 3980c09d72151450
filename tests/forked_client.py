"""What a script runs in place of a fresh interpreter: a program that is forked, and its status.

It hands its arguments, environment, folder and descriptors to the process that forks (forked.py),
and ends as the program does. It loads nothing: that is what it is for.
"""

import _socket
import marshal
import posix
import sys

_path, *_words = sys.argv[1:]


def _status() -> bytes:
    """Three digits; else the program is to be run by an interpreter of its own."""
    asking = _socket.socket(_socket.AF_UNIX)
    try:
        asking.connect(_path)
        posix.umask(mask := posix.umask(0))
        text = marshal.dumps((_words, posix.environ, posix.getcwd(), mask))
        fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
        rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)
        asking.sendmsg([b"%08d" % len(text)], [rights])
        asking.sendall(text)
    except OSError:
        return b""
    return asking.recv(3) or b"137"  # a signal has ended it


_found = _status()
if not _found.isdigit():
    posix.execv(sys.executable, [sys.executable, *_words])
posix._exit(int(_found))

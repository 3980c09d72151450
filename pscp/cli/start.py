"""The commands' first step: to listen for signals while the program is loaded.

Loading takes a tenth of a second, and longer on a busy machine. Nothing has begun by then, so a
signal ends the process at once, with the exit code that it has later. Before the first line here it
is the interpreter that a signal ends: by itself, which a shell counts as 129 for SIGHUP.

Not here: what the commands do (copy.py, pipe.py, run.py, serve.py, verify.py, zfs.py, complete.py),
signals once something runs (ground/signals.py).
Read next: copy.py.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    import signal
    from types import FrameType
    from typing import NoReturn
else:
    import _signal as signal  # built in; until signal.py is loaded a Ctrl-C is Python's traceback

_STATUSES: dict[int, int] = {
    signal.SIGINT: 130,
    signal.SIGTERM: 143,
    signal.SIGHUP: 143,
}  # as in ground/errors.py

# New objects after which Python looks for garbage in circles. At its own 700 the look cost 7 ms of
# CPU while a program was loaded, and a walk of many files makes none.
_GARBAGE_OBJECTS = 20_000


def pscp() -> NoReturn:
    """The command `pscp`."""
    run("pscp", "pscp.cli.copy")


def pscp_pipe() -> NoReturn:
    """The command `pscp-pipe`."""
    run("pscp-pipe", "pscp.cli.pipe")


def pscp_run() -> NoReturn:
    """The command `pscp-run`."""
    run("pscp-run", "pscp.cli.run")


def pscp_serve() -> NoReturn:
    """The command `pscp-serve`."""
    run("pscp-serve", "pscp.cli.serve")


def pscp_verify() -> NoReturn:
    """The command `pscp-verify`."""
    run("pscp-verify", "pscp.cli.verify")


def pscp_zfs() -> NoReturn:
    """The command `pscp-zfs`."""
    run("pscp-zfs", "pscp.cli.zfs")


def run(name: str, module: str) -> NoReturn:
    """Load a command's module, run its main(), and exit with what that returns."""
    listen(name)
    import gc
    import importlib
    import sys

    if sys.argv[1:2] in (["--complete-path"], ["--complete-line"]):  # typed by a shell, at <TAB>
        module = "pscp.cli.complete"
    gc.set_threshold(_GARBAGE_OBJECTS)
    status: int = importlib.import_module(module).main()
    from pscp.ground.signals import leave
    from pscp.ground.terminal_text import all_is_written

    leave(status if all_is_written(name) else status or 1)


def listen(name: str) -> None:
    """From now on a signal ends this process at once, until something else is done about it."""

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, f"{name}: interrupted\n".encode())
        os._exit(_STATUSES[number])

    for each in _STATUSES:
        if signal.getsignal(each) != signal.SIG_IGN:  # nohup, or a script's background
            signal.signal(each, end)

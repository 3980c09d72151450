"""Programs `python -c TEXT` whose processes are forked from one that has pscp loaded already.

An interpreter that loads pscp takes 0.2 CPU-s, a fork of one that has takes a tenth of that. run()
and start() are called as subprocess's run() and Popen are; the process is a child of the caller,
with its own signals, group, folder, environment and descriptors. What cannot be had so (another
program, an environment that changes how Python starts) is begun as usual.

A test of how a program starts or ends uses subprocess. Read next: e2e/ways.py.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import inspect
import json
import os
import pkgutil
import platform
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TextIO

_CLONE_PARENT = 0x8000  # the new process is a child of the caller's parent, which is the test run
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_LENGTH_BYTES = 8
_UNDERSTOOD = {"stdin", "stdout", "stderr", "cwd", "env", "umask", "start_new_session", "bufsize",
               "text", "errors", "encoding"}  # fmt: skip
_SERVE = (
    "import sys; sys.path.insert(0, sys.argv[1]); import forked; forked.serve(int(sys.argv[2]))"
)


class _Forked(subprocess.Popen[Any]):
    """A child that is forked in place of being executed."""

    def _execute_child(self, *given: Any) -> None:
        names = list(inspect.signature(subprocess.Popen._execute_child).parameters)  # type: ignore[attr-defined]
        call = dict(zip(names[1:], given, strict=True))
        cwd, env = call["cwd"] or os.getcwd(), call["env"]
        its = (call["p2cread"], call["c2pwrite"], call["errwrite"])
        fds = [fd if fd != -1 else number for number, fd in enumerate(its)]  # else it is ours
        asked = {
            "argv": [os.fsdecode(word) for word in call["args"]],
            "env": dict(os.environ if env is None else env), "umask": call["umask"],
            "cwd": os.fsdecode(cwd), "session": call["start_new_session"],
        }  # fmt: skip
        sys.audit("subprocess.Popen", asked["argv"][0], asked["argv"], asked["cwd"], None)
        self.pid = _ask(asked, fds)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(call[pipe] for pipe in pipes))  # type: ignore[attr-defined]


def start(argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
    """As subprocess.Popen."""
    if _can_be_forked(argv, popen):
        return _Forked(argv, **popen)
    return subprocess.Popen(argv, **popen)


def run(
    argv: Sequence[str], *, input: Any = None, capture_output: bool = False,
    timeout: float | None = None, check: bool = False, **popen: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """As subprocess.run()."""
    if capture_output:
        popen = {**popen, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        popen["stdin"] = subprocess.PIPE
    with start(argv, **popen) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


# A child that is executed goes on ignoring these where its parent does.
_INHERITED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _can_be_forked(argv: Sequence[str], popen: Mapping[str, Any]) -> bool:
    env = popen.get("env") or os.environ
    return (
        _SYS_CLONE is not None
        and sys.version_info[:2] >= (3, 11)
        and list(argv[:2]) == [sys.executable, "-c"]
        and popen.keys() <= _UNDERSTOOD
        and not any(signal.getsignal(each) == signal.SIG_IGN for each in _INHERITED)
        and _of_start(env) == _of_start(os.environ)
    )


def _of_start(env: Mapping[str, str]) -> dict[str, str]:
    """What of an environment Python itself reads when it starts."""
    return {k: v for k, v in env.items() if k.startswith(("PYTHON", "LC_", "LANG"))}


# --- the one process


@functools.cache
def _mother() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    from conftest import SHARED, held_now

    before = held_now()
    ours, its = socket.socketpair()
    with its:
        argv = [sys.executable, "-c", _SERVE, os.path.dirname(__file__), str(its.fileno())]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()])
    assert ours.recv(1) == b"r", "it has loaded pscp"
    SHARED.append(held_now().beyond(before))
    return ours, process


def close() -> None:
    """End that process, if there is one."""
    if _mother.cache_info().currsize:
        ours, process = _mother()
        ours.close()
        process.wait()
        _mother.cache_clear()


_asking = threading.Lock()


def _ask(asked: dict[str, Any], fds: list[int]) -> int:
    text = json.dumps(asked).encode()
    with _asking:
        ours, _ = _mother()
        socket.send_fds(ours, [b"%08d" % len(text)], fds)
        ours.sendall(text)
        return int(ours.recv(_LENGTH_BYTES))


def serve(fd: int) -> None:
    """Load pscp; then fork for each that asks, until nobody can ask any more."""
    import pscp

    for found in pkgutil.walk_packages(pscp.__path__, "pscp."):
        if not found.name.endswith(("__main__", "_helper", "embedded_server")):
            importlib.import_module(found.name)
    assert threading.active_count() == 1
    asking = socket.socket(fileno=fd)
    asking.sendall(b"r")
    while True:
        length, fds, _, _ = socket.recv_fds(asking, _LENGTH_BYTES, 3)
        if not length:
            return
        text = b""
        while len(text) < int(length):
            text += asking.recv(int(length) - len(text))
        pid = _fork()
        if pid == 0:
            asking.close()
            _be(json.loads(text), fds)
        for each in fds:
            os.close(each)
        asking.sendall(b"%08d" % pid)


def _fork() -> int:
    """As os.fork(), but that the child is our parent's."""
    python = ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    pid: int = python.syscall(_SYS_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid


def _be(asked: dict[str, Any], fds: list[int]) -> NoReturn:
    """Be the process that was asked for."""
    status = 1
    try:
        if asked["session"]:
            os.setsid()
        if asked["umask"] >= 0:
            os.umask(asked["umask"])
        os.chdir(asked["cwd"])
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        for fd in fds:
            os.close(fd)
        sys.stdin, sys.stdout, sys.stderr = _files()
        os.environ.clear()
        os.environ.update(asked["env"])
        _, _, program, *words = asked["argv"]
        sys.argv = ["-c", *words]
        status = _status(program)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for file in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError):
                file.flush()
    except BrokenPipeError:
        status = 120  # as Python's own
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def _files() -> tuple[TextIO, TextIO, TextIO]:
    """What sys has, on the descriptors that are 0, 1 and 2 now."""
    return (
        open(0, closefd=False), open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False),
        open(2, "w", buffering=1, errors="backslashreplace", closefd=False),
    )  # fmt: skip


def _status(program: str) -> int:
    """Run it; its exit status."""
    try:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

"""Programs in Python whose processes are forked from one that has pscp loaded already.

An interpreter that loads pscp takes 0.2 CPU-s, and one that loads asyncssh 0.3; a fork of one that
has takes a tenth of that. run() and start() are called as subprocess's run() and Popen are; the
process is a child of the caller, with its own signals, group, folder, environment and descriptors.
What cannot be had so (another program, an environment that changes how Python starts) is begun as
usual. With Program in the place of subprocess.Popen so are the programs that pscp starts for a
connection, and the servers; also what a forked program starts for a connection that is not ssh's,
for which it has a process below it. A program that loads more, which takes long, is forked from a
process of its own that has it loaded.

A test of how a program starts or ends uses subprocess with `python -c`. Read next: e2e/ways.py.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import importlib.util
import inspect
import json
import marshal
import os
import pkgutil
import platform
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from pscp.sftp import channel

_CLONE_PARENT = 0x8000  # the new process is a child of the caller's parent, which is the test run
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_LENGTH_BYTES, _FDS_MAX = 8, 16
_PYTHON = sys.executable  # a test may set another
_OVER_SFTP = channel._MAIN
_SERVERS = [[str(Path(__file__).parent / name)] for name in
            ("sftp_servers.py", "servers/logins.py", "servers/paramiko_server.py")]  # fmt: skip
_NOT_SSH = {"asyncssh", "paramiko", "sftp"}  # values of options: what a command starts is Python
_ARGV_BYTES = 8192  # of a command line at most, as others see it
_ABOVE = 500  # no descriptor that is passed has a number as high
_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); import forked; forked.serve(*sys.argv[2:4])"
_NAMED = "import sys; sys.path.insert(0, sys.argv[1]); import forked; forked.listen(sys.argv[2])"
_CLIENT = str(Path(__file__).parent / "forked_client.py")


# Root reads and writes everything; without its capabilities a mode holds for it as for anyone. A
# program that is run by this is forked without them.
POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
_PR_CAPBSET_DROP, _CAPABILITIES = 24, 64  # prctl(2); more than there are
_CAPABILITY_VERSION = 0x20080522  # capset(2)

_Popen = subprocess.Popen  # whose place Program may take


class Program(subprocess.Popen[Any]):
    """Popen, but a connection's program (pscp/transports, pscp/sftp) and a server are forked."""

    _loads = ""  # a module that what it is forked from has loaded besides pscp
    _is_powerless = False

    def _execute_child(self, *given: Any) -> None:
        names = list(inspect.signature(_Popen._execute_child).parameters)  # type: ignore[attr-defined]
        call = dict(zip(names[1:], given, strict=True))
        if not (self._is_known(call["args"]) and _can_be_forked(call)):
            argv = [*POWERLESS, *call["args"]] if self._is_powerless else given[0]
            super()._execute_child(argv, *given[1:])  # type: ignore[misc]
            return
        cwd, env = call["cwd"] or os.getcwd(), call["env"]
        its = (call["p2cread"], call["c2pwrite"], call["errwrite"])
        fds = [fd if fd != -1 else number for number, fd in enumerate(its)]  # else it is ours
        passed = list(call["pass_fds"])
        asked = {
            "argv": [os.fsdecode(word) for word in call["args"]], "fds": [0, 1, 2, *passed],
            "env": dict(os.environ if env is None else env), "umask": call["umask"],
            "cwd": os.fsdecode(cwd), "session": call["start_new_session"],
            "cpus": sorted(os.sched_getaffinity(0)), "powerless": self._is_powerless,
        }  # fmt: skip
        self.pid = _ask(self._loads, asked, [*fds, *passed])
        # Behind it: _mother() looks for new processes itself, and has not seen this one.
        sys.audit("subprocess.Popen", asked["argv"][0], asked["argv"], asked["cwd"], None)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(call[pipe] for pipe in pipes))  # type: ignore[attr-defined]

    def _is_known(self, argv: Any) -> bool:
        words = list(argv[:4]) if isinstance(argv, list) else []
        if "-c" in words[1:3]:
            return words[1] == "-P" or words[1:] == ["-I", "-c", _OVER_SFTP]
        return words[1:3] == ["-m", "servers.embedded_server"] or words[1:2] in _SERVERS


class _Forked(Program):
    """A child that is forked in place of being executed."""

    def __init__(self, argv: Sequence[str], *, loads: str = "", **popen: Any) -> None:
        self._loads = loads
        self._is_powerless = tuple(argv[: len(POWERLESS)]) == POWERLESS
        super().__init__(argv[len(POWERLESS) :] if self._is_powerless else argv, **popen)

    def _is_known(self, argv: Any) -> bool:
        return list(argv[1:2]) == ["-c"] or (argv[1] == "-m" and self._loads != "")


def start(argv: Sequence[str], *, loads: str = "", **popen: Any) -> subprocess.Popen[Any]:
    """As subprocess.Popen. `loads`: a module that takes long to load, besides those of pscp."""
    return _Forked(argv, loads=loads, **popen)


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


# What these are for holds for no program that is forked.
_IN_NO_FORK = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
# A child that is executed goes on ignoring these where its parent does.
_INHERITED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OF_A_GROUP = (signal.SIGINT, signal.SIGHUP)  # also those get it that have nothing to end


def _can_be_forked(call: Mapping[str, Any]) -> bool:
    return (
        _SYS_CLONE is not None
        and call["args"][0] == _PYTHON
        and (call["executable"], call["preexec_fn"], call["shell"]) == (None, None, False)
        and not any(signal.getsignal(each) == signal.SIG_IGN for each in _INHERITED)
        and _starts_as_here(call["env"] or os.environ)
    )


def _starts_as_here(env: Mapping[str, str]) -> bool:
    """Does Python itself start alike with this environment?"""
    theirs, ours = _of_start(env), _of_start(os.environ)
    return theirs == {k: v for k, v in ours.items() if k in theirs or k not in _IN_NO_FORK}


def _of_start(env: Mapping[str, str]) -> dict[str, str]:
    """What of an environment Python itself reads when it starts; of the locales in effect."""
    found = {k: v for k, v in env.items() if k.startswith(("PYTHON", "LC_", "LANG"))}
    by_name = [found.pop(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    locale = next(filter(None, by_name), "C")
    is_coerced = locale in ("C", "POSIX") and not by_name[0]  # PEP 538
    return {**found, "locale": "C.UTF-8" if is_coerced else locale}


# --- the process that forks, for each module that it is to load besides


_mothers: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []


@functools.cache
def _mother(loads: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    from conftest import SHARED, held_now

    before = held_now()
    ours, its = socket.socketpair()
    with its:
        words = (os.path.dirname(__file__), str(its.fileno()), loads, "-" * _ARGV_BYTES)
        argv = [sys.executable, "-c", _SERVE, *words]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()])
    assert ours.recv(1) == b"r", "it has loaded pscp"
    SHARED.append(held_now().beyond(before))
    _mothers.append((ours, process))
    return ours, process


def words(argv: Sequence[str]) -> list[str]:
    """What a script is to exec for a program in Python, so that it is forked."""
    return [_PYTHON, "-IS", _CLIENT, _listener()[0], *argv[1:]]


@functools.cache
def _listener() -> tuple[str, subprocess.Popen[bytes]]:
    """The socket of a process that forks for who connects, and that process."""
    from conftest import SHARED, held_now

    before = held_now()
    path = os.path.join(tempfile.mkdtemp(prefix="forked-"), "s")
    words = (os.path.dirname(__file__), path, "-" * _ARGV_BYTES)
    argv = [sys.executable, "-c", _NAMED, *words]
    process = _Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.read(1) == b"r", "it has loaded pscp"
    SHARED.append(held_now().beyond(before))
    return path, process


def close() -> None:
    """End those processes."""
    if _listener.cache_info().currsize:
        path, listener = _listener()
        listener.communicate()  # the end of its input
        shutil.rmtree(os.path.dirname(path))
        _listener.cache_clear()
    while _mothers:
        ours, process = _mothers.pop()
        ours.close()
        process.wait()
    _mother.cache_clear()


_asking = threading.Lock()
_below: socket.socket | None = None  # to the process that forks what a forked program starts


def _ask(loads: str, asked: dict[str, Any], fds: list[int]) -> int:
    text = json.dumps(asked).encode()
    with _asking:
        ours = _below or _mother(loads)[0]
        socket.send_fds(ours, [b"%08d" % len(text)], fds)
        ours.sendall(text)
        return int(ours.recv(_LENGTH_BYTES))


def serve(fd: str, loads: str) -> None:
    """Load pscp, and that module; then fork for each that asks, until nobody can any more."""
    _load(loads)
    asking = socket.socket(fileno=int(fd))
    asking.sendall(b"r")
    _fork_for(asking)


def listen(path: str) -> None:
    """As serve(), for programs of scripts, which connect to a socket; until the input ends."""
    _load("")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        os.write(1, b"r")
        while listener.fileno() in select.select([listener.fileno(), 0], [], [])[0]:
            asking = listener.accept()[0]
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                _be_for(asking)
            asking.close()


def _be_for(asking: socket.socket) -> NoReturn:
    """Be the program of who has connected, who gets its status; or have it run it itself."""
    length, fds, _, _ = socket.recv_fds(asking, _LENGTH_BYTES, _FDS_MAX)
    text = b""
    while len(text) < int(length):
        text += asking.recv(int(length) - len(text))
    argv, given, cwd, umask = marshal.loads(text)
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()}
    is_known = argv[0] == "-c" or not argv[0].startswith("-")
    if not is_known or not _starts_as_here(env):
        asking.sendall(b"own")
        os._exit(0)
    answer = fcntl.fcntl(asking.detach(), fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    end, own = os._exit, os.getpid()

    def ended(status: int) -> NoReturn:
        if os.getpid() == own:
            os.write(answer, b"%03d" % status)
        end(status)

    os._exit = ended  # which installed commands call as well
    asked = {
        "argv": [_PYTHON, *argv], "fds": [0, 1, 2], "env": env, "cwd": os.fsdecode(cwd),
        "umask": umask, "session": False, "powerless": False,
        "cpus": sorted(os.sched_getaffinity(0)),
    }  # fmt: skip
    _be(asked, fds)


def _load(loads: str) -> None:
    import pscp

    for found in pkgutil.walk_packages(pscp.__path__, "pscp."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    from pscp.cli import copy as cli
    from pscp.connect import agent_program

    cli.parse(["here", "host:there"])  # which compiles expressions
    agent_program.bundle()
    for name in agent_program.COPY_MODULES:
        agent_program._text(name)
    if loads:
        importlib.import_module(loads)
    gc.freeze()
    assert threading.active_count() == 1


def _fork_for(asking: socket.socket) -> None:
    while True:
        length, fds, _, _ = socket.recv_fds(asking, _LENGTH_BYTES, _FDS_MAX)
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
        if asked["powerless"]:
            _give_up_powers()
        if asked["session"]:
            os.setsid()
        if asked["umask"] >= 0:
            os.umask(asked["umask"])
        os.sched_setaffinity(0, asked["cpus"])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_A_GROUP)
        if not _NOT_SSH.isdisjoint(asked["argv"]):
            _fork_below(fds)
        _show(asked["argv"])
        os.chdir(asked["cwd"])
        above = [fcntl.fcntl(fd, fcntl.F_DUPFD, _ABOVE) for fd in fds]
        for fd in fds:
            os.close(fd)
        for fd, number in zip(above, asked["fds"], strict=True):
            os.dup2(fd, number)
            os.close(fd)
        sys.stdin, sys.stdout, sys.stderr = _files(sys.stdout.errors)
        os.environ.clear()
        os.environ.update(asked["env"])
        tempfile.tempdir = None  # it may be that of a test long ago
        status = _status(*_program(asked["argv"][1:]))
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


def _give_up_powers() -> None:
    """Have no capabilities, here and in what is started."""
    libc = ctypes.CDLL(None)
    for number in range(_CAPABILITIES):
        libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    assert libc.capset(struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24)) == 0


def _fork_below(fds: list[int]) -> None:
    """Have a process below this one, as it is now, fork the connections' programs it will start."""
    global _below
    ours, its = socket.socketpair()
    if os.fork() == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, _OF_A_GROUP)
        for fd in (*fds, ours.detach()):
            os.close(fd)
        _fork_for(its)
        os._exit(0)
    its.close()
    _below = socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, _ABOVE))
    ours.close()
    subprocess.Popen = Program  # type: ignore[misc]


def _show(argv: list[str]) -> None:
    """Have /proc show this as the command line: it is read from where it was at the start."""
    with open("/proc/self/stat", "rb") as file:
        start, end = map(int, file.read().rpartition(b")")[2].split()[45:47])  # proc(5)
    text = b"\0".join(map(os.fsencode, argv))
    ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _files(errors: str | None) -> tuple[TextIO, TextIO, TextIO]:
    """What sys has, on the descriptors that are 0, 1 and 2 now."""
    return (
        open(0, errors=errors, closefd=False),
        open(1, "w", buffering=1 if os.isatty(1) else -1, errors=errors, closefd=False),
        open(2, "w", buffering=1, errors="backslashreplace", closefd=False),
    )  # fmt: skip


def _program(words: list[str]) -> tuple[str, str]:
    """The text of the program that these words name, and its file; the others are in sys.argv."""
    if "-c" in words[:2]:
        at = words.index("-c")
        sys.argv = words[at : at + 1] + words[at + 2 :]
        return words[at + 1], "<string>"
    if words[0] == "-m":
        found = importlib.util.find_spec(words[1])
        assert found is not None and found.origin is not None
        words = [found.origin, *words[2:]]
    sys.argv = words
    return Path(words[0]).read_text(), words[0]


def _status(program: str, file: str) -> int:
    """Run it; its exit status."""
    try:
        exec(compile(program, file, "exec"), {"__name__": "__main__", "__file__": file})
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

"""Fixtures for all tests: private SSH servers, far-end interpreters, and the check for leaks.

A test that takes `far_python` or `login_shell` runs once for each that this machine has. After
every test nothing may be left of it: no thread, descriptor or process, at either end.

Not here: the comparison of trees (compare.py). Read next: servers/private.py.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import forked
import held_lanes
import hypothesis
import matrix
import pytest
import whole_run
from servers import GoServer, LoginServer, ParamikoServer, PasswordSshd, why_no_go, why_no_mounts
from servers.private import EmbeddedServer, PrivateServer, SshdServer, find_sshd

from pscp.ground.processes import Process, below, living, stat_of

# An example may take long on a busy machine; that says nothing about what is tested. They are
# others in every run, so that fewer than hypothesis' 100 find as much.
EXAMPLES = int(os.environ.get("PSCP_CORE_EXAMPLES", 20))
hypothesis.settings.register_profile("pscp", deadline=None, max_examples=EXAMPLES)
hypothesis.settings.load_profile("pscp")

# Every process that a test starts, here or through a private server, inherits this: so it is
# found again even where its parent died before it and it is nobody's descendant any more.
RUN_TOKEN = secrets.token_hex(16)
# A login that nobody needs any more has 4 s, and its ssh 2 to end (pscp/connect/spare_logins.py);
# sshd notices a connection's end, and its agent an end of stdin, a moment later.
ENDING_S = 12.0
PATIENCE_S = 60.0  # for what happens within a second on a machine that is not busy
OLDEST_MINOR, NEWEST_MINOR = 6, 14
PYENV_VERSIONS = Path("~/.pyenv/versions").expanduser()  # before HOME is changed
SHELLS = ("sh", "bash", "csh", "fish")
# sshd's own choice (sntrup761 in 9.2) takes 0.12 CPU-s more of each login than all else of it does.
# Servers that ask for passwords, and those of the self-test, keep it.
# Half of what an agent's start takes is to compile what it was sent. The interpreter that runs the
# tests keeps that in the home folder, as for modules; others do not.
KEEPING = """import sys;
import builtins, marshal, os, zlib
def kept(text, name, mode, compile=compile, **named):
    if named or len(text) < 500:
        return compile(text, name, mode, **named)
    raw = text if isinstance(text, bytes) else text.encode()
    path = "%s/%08x-%d" % ({folder!r}, zlib.crc32(raw), len(raw))
    try:
        with open(path, "rb") as file:
            return marshal.load(file)
    except (OSError, EOFError, ValueError, TypeError):
        code = compile(text, name, mode)
    try:
        with open("%s.%d" % (path, os.getpid()), "wb") as file:
            marshal.dump(code, file)
        os.rename(file.name, path)
    except OSError:
        pass
    return code
builtins.compile = kept
exec(sys.argv.pop(1))
"""
QUICK_LOGINS = ("KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org",)


def unavailable(what: str) -> NoReturn:
    """Leaves a test out, or fails it where scripts/test was told that nothing may be left out."""
    if os.environ.get("PSCP_REQUIRE_ALL"):
        pytest.fail(what)
    pytest.skip(what)


def until(is_so: Callable[[], object], what: str = "", patience_s: float = PATIENCE_S) -> None:
    """Wait for something that takes a moment; fail the test where it never comes.

    To look takes a quarter of a processor at most, since what is waited for needs it as well.
    """
    deadline_s = time.monotonic() + patience_s
    looked_s = time.thread_time()
    while not is_so():
        assert time.monotonic() < deadline_s, f"never: {what or is_so}"
        time.sleep(max(0.002, 3 * (time.thread_time() - looked_s)))
        looked_s = time.thread_time()


# --- which tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-ways", action="store_true", help="every test over every transport (matrix.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in matrix.MARKS.values():
        config.addinivalue_line("markers", line)
    whole_run.begin(config)
    # What a test starts would ignore what we were started to ignore (nohup, &), and tests send it.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep Python's collector from looking again and again at ten thousand tests, which stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all-ways") or any("[" in arg for arg in config.args):
        return  # or this very one was asked for
    without = matrix.left_out(items)
    config.hook.pytest_deselected(items=list(without))
    items[:] = [item for item in items if item not in without]


# --- a world of its own


@pytest.fixture(scope="session", autouse=True)
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home folder of the tests: nobody's journals or ssh keys are touched or used."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for name in ("STATE", "CONFIG", "CACHE", "DATA"):
            patch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
        (home / "run").mkdir(mode=0o700)
        patch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
        patch.setenv("PSCP_TEST_RUN", RUN_TOKEN)
        patch.setattr(subprocess, "Popen", forked.Program)
        for name in ("SSH_AUTH_SOCK", "SSH_ASKPASS", "DISPLAY"):
            patch.delenv(name, raising=False)
        yield home
        forked.close()


@pytest.fixture
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The state folder, which is the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "pscp"


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Together:
    """together(LANES, IS_SO, AFTER): options of a copy that goes on once so many lanes have work,
    and after so many bytes once IS_SO(), which may act; others then as well (held_lanes.py).
    """

    def hold(
        lanes: int, is_so: Callable[[], object] = lambda: True, after_bytes: int = 0
    ) -> dict[str, Any]:
        held_lanes.hold(lanes, is_so, after_bytes, replace=monkeypatch.setattr)
        return {"connections": lanes, "limit_kbit_s": held_lanes.LIMIT_KBIT_S}

    return hold


# --- servers

T = TypeVar("T")
MakeServer = Callable[..., PrivateServer]
Together = Callable[..., dict[str, Any]]
MakeFar = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def far_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where commands start at the far end, and what `host:name` is relative to."""
    return tmp_path_factory.mktemp("far-home")


@pytest.fixture(scope="session")
def make_far(far_home: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeFar:
    """make_far(python): what the sessions of a server get; python3 is this one, or none."""

    def make(python: str | None = sys.executable) -> dict[str, str]:
        return far_environment(far_home, tmp_path_factory.mktemp("far-bin"), python)

    return make


@pytest.fixture(scope="session")
def sshd(make_far: MakeFar) -> Iterator[PrivateServer]:
    """One sshd for the whole run; its python3 is the one that runs the tests."""
    require_sshd()
    with shared(lambda: SshdServer(QUICK_LOGINS, environment=make_far())) as server:
        yield server


@pytest.fixture(scope="session")
def embedded(make_far: MakeFar) -> Iterator[PrivateServer]:
    """One asyncssh server for the whole run."""
    with shared(lambda: EmbeddedServer(environment=make_far())) as server:
        yield server


@pytest.fixture(scope="session")
def paramiko_server(make_far: MakeFar) -> Iterator[PrivateServer]:
    """One server made with paramiko: commands and SFTP."""
    with shared(lambda: ParamikoServer(environment=make_far())) as server:
        yield server


@pytest.fixture(scope="session")
def go_server(make_far: MakeFar) -> Iterator[PrivateServer]:
    """One server made with Go's ssh and sftp packages."""
    if why := why_no_go():
        unavailable(why)
    with shared(lambda: GoServer(environment=make_far())) as server:
        yield server


@pytest.fixture
def until_end() -> Iterator[contextlib.ExitStack]:
    """What is entered here is left when the test is over."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def make_login_server(
    make_far: MakeFar, until_end: contextlib.ExitStack
) -> Callable[..., LoginServer]:
    """make_login_server(password=..., asks=..., codes=(...), question=..., max_sessions=...)."""

    def make(**settings: Any) -> LoginServer:
        return until_end.enter_context(LoginServer(environment=make_far(), **settings))

    return make


@pytest.fixture
def make_password_sshd(
    make_far: MakeFar, until_end: contextlib.ExitStack
) -> Callable[..., PasswordSshd]:
    """make_password_sshd(PASSWORD, has_pam): a real sshd."""
    require_sshd()
    if why := why_no_mounts():
        unavailable(why)

    def make(password: str, has_pam: bool) -> PasswordSshd:
        its = make_far()
        return until_end.enter_context(
            PasswordSshd(password, has_pam, QUICK_LOGINS, environment=its)
        )

    return make


@pytest.fixture
def make_sshd(make_far: MakeFar, until_end: contextlib.ExitStack) -> MakeServer:
    """make_sshd(["MaxStartups 1"], python=PATH, environment={...}, shell=PATH): an sshd."""

    def make(
        extra_config: Sequence[str] = (),
        *,
        python: str | None = sys.executable,
        environment: Mapping[str, str] | None = None,
        shell: str | None = None,
    ) -> PrivateServer:
        require_sshd()
        lines = (*extra_config, *QUICK_LOGINS)
        its = {**make_far(python), **(environment or {})}
        return until_end.enter_context(SshdServer(lines, environment=its, shell=shell))

    return make


@pytest.fixture
def make_embedded(make_far: MakeFar, until_end: contextlib.ExitStack) -> MakeServer:
    """make_embedded(environment={...}, shell=PATH): an asyncssh server."""

    def make(
        *, environment: Mapping[str, str] | None = None, shell: str | None = None
    ) -> PrivateServer:
        its = {**make_far(), **(environment or {})}
        return until_end.enter_context(EmbeddedServer(environment=its, shell=shell))

    return make


@contextlib.contextmanager
def shared(start: Callable[[], contextlib.AbstractContextManager[T]]) -> Iterator[T]:
    """Have a server that outlives the test that was the first to ask for it."""
    before = held_now()
    with start() as server:
        SHARED.append(held_now().beyond(before))
        yield server


def require_sshd() -> None:
    if find_sshd() is None:
        unavailable("sshd is not installed")


def far_environment(home: Path, folder: Path, python: str | None) -> dict[str, str]:
    """What sessions get. `python` is what `python3` runs there; None: there is none at all."""
    if python is None:
        for tool in ("sh", "env", "cat", "true", "sleep", "kill"):
            if found := shutil.which(tool):
                (folder / tool).symlink_to(found)
        path = str(folder)
    else:
        # A script, not a link: an interpreter finds its libraries by where it itself lies.
        script = folder / "python3"
        agent = f'exec "{python}" "$@"'
        if python == sys.executable:
            kept = shlex.quote(keeping())
            agent = f'[ "$1" = -IS ] && shift 2 && exec "{python}" -IS -c {kept} "$@"\n{agent}'
        script.write_text(f"#!/bin/sh\n{agent}\n")
        script.chmod(0o755)
        path = f"{folder}:/usr/local/bin:/usr/bin:/bin"
    return {"HOME": str(home), "PATH": path, "PSCP_TEST_RUN": RUN_TOKEN}


def keeping() -> str:
    return KEEPING.format(folder=os.environ["HOME"])


# --- what the far end may run


@functools.cache
def find_far_pythons() -> dict[str, str]:
    """Interpreters 3.6 to 3.14 found here, version -> path."""
    found_pythons: dict[str, str] = {}
    for minor in range(OLDEST_MINOR, NEWEST_MINOR + 1):
        candidates = sorted(PYENV_VERSIONS.glob(f"3.{minor}.*/bin/python3"))
        if on_path := shutil.which(f"python3.{minor}"):
            candidates.append(Path(on_path))
        candidates.append(Path(sys.executable))
        runnable = (str(path) for path in candidates if python_version(path) == (3, minor))
        if first := next(runnable, None):
            found_pythons[f"3.{minor}"] = first
    return found_pythons


def python_version(path: Path) -> tuple[int, int] | None:
    # Run, as a pyenv shim is there and executable for versions that it then refuses to run.
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        argv = [str(path), "--version"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        if match := re.match(r"Python (\d+)\.(\d+)", done.stdout):
            return int(match[1]), int(match[2])
    return None


@pytest.fixture(scope="session")
def far_pythons() -> list[str]:
    return list(find_far_pythons().values())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "far_python" in metafunc.fixturenames:
        found = find_far_pythons()
        metafunc.parametrize("far_python", list(found.values()), ids=list(found))


@pytest.fixture(params=SHELLS)
def login_shell(request: pytest.FixtureRequest) -> str:
    """Path of a shell, for make_sshd(shell=...)."""
    name: str = request.param
    return shutil.which(name) or unavailable(f"{name} is not installed")


# --- leaks


class Held(NamedTuple):
    """What this process has, and what it and its tests have started."""

    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]
    processes: frozenset[Process]

    def beyond(self, before: Held) -> Held:
        return Held(
            self.threads - before.threads,
            self.descriptors - before.descriptors,
            self.processes - before.processes,
        )


SHARED: list[Held] = []  # what is held for the whole run
# Only after these can there be processes that were not there when they were looked for last.
STARTS = {
    "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "socket.connect",
}  # fmt: skip


class Looks:
    """The processes of this run, looked for where there may be new ones: it reads all of /proc."""

    def __init__(self) -> None:
        self._found: frozenset[Process] = frozenset()
        self.is_old = True
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        self.is_old = self.is_old or event in STARTS

    def processes(self) -> frozenset[Process]:
        if self.is_old:
            self.is_old = False
            self._found = started_processes()
        return frozenset(process for process in self._found if is_there(process))


LOOKS = Looks()


def held_now() -> Held:
    return Held(frozenset(threading.enumerate()), open_descriptors(), LOOKS.processes())


def held_beyond(*known: Held) -> Held:
    return functools.reduce(Held.beyond, known, held_now())


def open_descriptors() -> frozenset[tuple[int, str]]:
    """(number, what it is open on); empty on systems without /proc."""
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return frozenset(found)


def started_processes() -> frozenset[Process]:
    """Processes below this one, and its orphans, which are known by their environment."""
    parents = living()
    marked = (each for each in may_be_orphans(parents) if is_marked(each.pid))
    return frozenset({*below(os.getpid(), parents), *marked})


def may_be_orphans(parents: dict[Process, int]) -> list[Process]:
    """Leave out what is below a process of others: whose tests run beside ours has as many.

    An orphan gets one of our ancestors as its parent, and is younger than we are. Nobody but the
    workers of xdist is a child of their parent.
    """
    if not os.path.exists("/proc/self/environ"):
        return []  # nor can any be told from others
    above = {process.pid: parent for process, parent in parents.items()}
    began = {process.pid: int(process.started) for process in parents}
    line = [os.getpid()]
    while line[-1] in above:
        line.append(above[line[-1]])
    not_orphans = line[: 2 if "PYTEST_XDIST_WORKER" in os.environ else 1]

    def may_be(pid: int) -> bool:
        parent = above.get(pid, 1)
        if parent in line:
            return parent not in not_orphans and began.get(pid, began[line[0]]) >= began[line[0]]
        return may_be(parent)

    return [process for process in parents if process.pid not in line and may_be(process.pid)]


def is_there(process: Process) -> bool:
    with contextlib.suppress(OSError):
        fields = stat_of(process.pid)
        return fields[0] not in (b"Z", b"X") and fields[19].decode() == process.started
    return False


def is_marked(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
        return RUN_TOKEN.encode() in environ.read()
    return False


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A command that a signal ended ignores signals from then on, and all that it starts does."""
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(kind) for kind in kinds]
    yield
    for kind, action in zip(kinds, before, strict=True):
        signal.signal(kind, action)


@pytest.fixture(autouse=True)
def no_leaks(isolated: Path) -> Iterator[None]:
    before = held_now()
    yield
    now_s = time.monotonic()
    deadline_s, collect_s = now_s + ENDING_S, now_s + 0.5
    is_all = True  # what there was at the first look, without what may have come of it since
    while (has_left := any(left := held_beyond(before, *SHARED))) or not is_all:
        if not has_left:
            is_all = LOOKS.is_old = True
            continue
        is_all = False
        if time.monotonic() > deadline_s:
            report(left)
        if time.monotonic() > collect_s:
            collect_s = deadline_s
            gc.collect()  # a folder's descriptor is closed with its last owner, as a traceback
        time.sleep(0.01)


def report(left: Held) -> NoReturn:
    """Ends what was left, so that it troubles no other test, and fails this one."""
    described = [f"{p.pid}: {command_line(p.pid)}" for p in left.processes]
    for process in left.processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    pytest.fail(
        "the test left behind:"
        f"\n  threads {[thread.name for thread in left.threads]}"
        f"\n  descriptors {sorted(left.descriptors)}"
        f"\n  processes {described}"
    )


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as argv:
        return argv.read().replace(b"\0", b" ").decode(errors="replace").strip()
    return "ended"

"""The ground: values in the state folder, calls that are to end, signals, and processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pscp.ground import processes, state, stops
from pscp.ground.errors import Terminated
from pscp.ground.processes import living, living_by_ps
from pscp.ground.signals import raise_on_signals

KEY = ("someone", "host", 22, None)

pytestmark = pytest.mark.usefixtures("own_state")


def test_a_value_is_kept_for_its_key() -> None:
    assert state.recall_entry("hosts", "host", KEY) is None
    assert state.remember_entry("hosts", "host", KEY, {"lanes": 3})
    assert state.recall_entry("hosts", "host", KEY) == {"lanes": 3}
    assert state.recall_entry("hosts", "host", (*KEY[:3], "jump")) is None


def test_a_file_of_another_key_is_not_taken_for_this_one(own_state: Path) -> None:
    """Two keys may get one name: its number has 32 bits."""
    state.remember_entry("hosts", "host", KEY, 1)
    state.remember_entry("hosts", "other", ("other",), 2)
    [file] = (own_state / "hosts").glob("host-*")
    [other] = (own_state / "hosts").glob("other-*")
    other.replace(file)
    assert state.recall_entry("hosts", "host", KEY) is None
    state.remember_entry("hosts", "host", KEY, 3)
    assert state.recall_entry("hosts", "host", KEY) == 3


@pytest.mark.parametrize("text", ["", "[]", "7", '{"value": 1}', '{"key": null, "value": 1}'])
def test_a_damaged_file_has_no_value(own_state: Path, text: str) -> None:
    state.remember_entry("hosts", "host", KEY, 1)
    [file] = (own_state / "hosts").iterdir()
    file.write_text(text)
    assert state.recall_entry("hosts", "host", KEY) is None


@pytest.mark.parametrize("label", ["a/b", "..", "../../etc", "h\udcffst", "\n", "x" * 1000, ""])
def test_any_label_makes_a_name_in_the_folder(own_state: Path, label: str) -> None:
    assert state.remember_entry("hosts", label, (label,), label)
    assert state.recall_entry("hosts", label, (label,)) == label
    [file] = (own_state / "hosts").iterdir()
    assert json.loads(file.read_text())["value"] == label


@pytest.fixture
def generous() -> Iterator[None]:
    """The umask of many distributions, where each user has a group."""
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.usefixtures("generous")
def test_the_state_folder_is_the_user_s_alone(own_state: Path) -> None:
    """U11: another user of the group could put a link in a journal's place."""
    state.lock(str(own_state / "zfs" / "lock")).close()
    assert own_state.stat().st_mode & 0o777 == 0o700
    own_state.chmod(0o775)  # as an earlier version made it
    state.remember("x", 1)
    assert own_state.stat().st_mode & 0o777 == 0o700


def test_a_lock_is_no_link(own_state: Path) -> None:
    own_state.mkdir()
    (own_state / "file").write_text("another's")
    (own_state / "lock").symlink_to(own_state / "file")
    with pytest.raises(OSError, match="symbolic links"):
        state.lock(str(own_state / "lock"))


# --- a call that is to end waits for nothing, and raises why


class Ended(Exception):
    """What a call is stopped with."""


def test_what_is_waited_for_is_ended_and_the_reason_raised() -> None:
    stop, ended = stops.Stop(), list[BaseException]()
    with pytest.raises(Ended), stop.here(), stops.ended_by(ended.append):
        stop.stop(Ended())
        stop.stop(KeyError())  # only the first one counts
        raise OSError("what was waited for has ended")
    assert [type(error) for error in ended] == [Ended]


def test_what_is_waited_for_later_is_ended_at_once() -> None:
    stop, ended = stops.Stop(), list[BaseException]()
    stop.stop(Ended())
    with pytest.raises(Ended), stop.here(), stops.ended_by(ended.append):
        assert len(ended) == 1
    with pytest.raises(Ended), stop.here():
        stops.pause(1000)
    lock = threading.Lock()
    with lock, pytest.raises(Ended), stop.here():
        stops.acquire(lock)


def test_what_is_over_is_not_ended() -> None:
    stop, ended = stops.Stop(), list[BaseException]()
    with stop.here(), stops.ended_by(ended.append):
        pass
    stop.stop(Ended())
    assert not ended


def test_a_pause_is_cut_short_from_another_thread() -> None:
    stop = stops.Stop()
    threading.Thread(target=stop.stop, args=(Ended(),)).start()
    with pytest.raises(Ended), stop.here():
        stops.pause(1000)


def test_who_is_in_no_call_is_not_ended() -> None:
    stop = stops.Stop()
    stop.stop(Ended())
    with stop.here():
        pass
    lock = threading.Lock()
    with stops.ended_by(lambda error: pytest.fail("ended")):
        stops.pause(0)
        stops.acquire(lock)
    assert stops.current() is None and lock.locked()


# --- signals that end a copy


def test_a_program_started_after_the_signal_can_be_ended() -> None:
    """As an ssh that logs in while the copy is ending; the second signal changes nothing."""
    with pytest.raises(Terminated), raise_on_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            child = subprocess.Popen(["sleep", "1000"])
            child.terminate()
            status = child.wait()
    assert status == -signal.SIGTERM


def test_a_thread_that_is_being_started_is_not_forgotten() -> None:
    """start() forgets it at an Exception, though it runs, and then it ends with a traceback."""
    starting: Any = SimpleNamespace(f_code=threading.Thread.start.__code__)
    with pytest.raises(Terminated), raise_on_signals():
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        with pytest.raises(KeyboardInterrupt):
            handler(signal.SIGTERM, starting)
        raise KeyboardInterrupt


class Dying:
    """What weak references are made to."""


def test_an_exception_that_python_ignores_comes_again() -> None:
    """In a weak reference's callback, such as each import has, it was lost, with a traceback."""
    dying, said = Dying(), list[object]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", said.append)
        with pytest.raises(Terminated), raise_on_signals(patience_s=60):
            reference = weakref.ref(dying, lambda _: os.kill(os.getpid(), signal.SIGTERM))
            del dying
            threading.Event().wait(20)
    assert reference() is None
    assert not said


# --- processes


ROOT = Path(__file__).parents[2]


def test_a_process_that_stopped_is_waited_for() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        try:
            found = {each for each in living() if each.pid == child.pid}
            assert found and processes.is_at_work(child.pid)
            child.send_signal(signal.SIGSTOP)
            processes.wait_until_stopped(found)
            assert not processes.is_at_work(child.pid) and child.poll() is None
        finally:
            child.kill()
    assert not processes.is_at_work(child.pid)


def test_what_does_not_heed_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TERM_S", 0.1)
    script = "(trap '' TERM; echo; exec sleep 100) & wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        processes.end_all_below(child.pid)
        assert child.wait() == 0


def test_processes_by_ps_are_the_same() -> None:
    try:
        by_ps = living_by_ps()
    except FileNotFoundError:
        pytest.skip("ps is not installed")
    me = next(process for process in by_ps if process.pid == os.getpid())
    assert by_ps[me] == os.getppid()


def test_without_proc_all_that_is_below_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """ps says when a process began in words: a forced end failed by them."""
    by_ps = {processes.Process(7, "Mon Nov 30 06:00:00 2026"): 5}
    monkeypatch.setattr(processes, "living", lambda: dict(by_ps))
    assert processes.descendants(5, since_s=1.0) == {*by_ps}


def test_the_demonstration_needs_nothing_that_only_tests_have() -> None:
    """scripts/run installs pscp alone."""
    program = (
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='demo');"
        "sys.exit(', '.join({'pytest', 'hypothesis', 'conftest'} & sys.modules.keys()) or 0)"
    )
    demo = ROOT / "scripts" / "run.d" / "__main__.py"
    argv = [sys.executable, "-c", program, str(demo)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

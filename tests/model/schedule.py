"""Runs tasks one at a time and hands control over at their system calls, as a plan says.

A task is a thread, so that the code in it needs no change; only the one that holds the baton runs.
What a plan does to it is deterministic: at the so-many-th system call another task goes on, or this
one's process stands still, or is killed. Time is simulated: it passes when nobody can run.

Not here: what a system call does (kernel.py), what tasks do (copying.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

STEPS_MOST = 30_000  # system calls of one world; a few thousand are usual
LONGEST_S = 600.0  # of simulated time: every wait of the endpoint is over long before


class Ended(BaseException):
    """The task's process was killed, or the world is over: the thread unwinds, without effect."""


class Event(NamedTuple):
    """So many system calls after the event before, something happens to whoever makes one."""

    after: int
    what: str  # one of WHATS
    who: int = 0


SWITCH, STALL, KILL, WAKE, FULL = WHATS = ("switch", "stall", "kill", "wake", "full")


class Process:
    """What is killed or stands still as a whole, and holds descriptors."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid, self.name = pid, name
        self.is_dead = self.is_stalled = False
        self.descriptors: dict[int, Any] = {}


class Task:
    """A thread of a process."""

    def __init__(self, process: Process, act: Callable[[], None]) -> None:
        self.process, self.act = process, act
        self.until: Callable[[], bool] | None = None  # what it waits for
        self.deadline_s: float | None = None
        self.is_over = self.is_begun = False
        self.baton = threading.Semaphore(0)
        self.thread = threading.Thread(target=lambda: None, daemon=True)


class Scheduler:
    """The tasks of one world, and its clock."""

    def __init__(self, events: list[Event]) -> None:
        self.now_s = 1000.0
        self.steps = 0
        self.failure: BaseException | None = None
        self.on_death: Callable[[Process], None] = lambda process: None
        self.is_full = False  # the next thing that is written finds no space
        self.processes: list[Process] = []
        self.trace: list[str] = []
        self.has_kills = False
        self._events = list(events)
        self._tasks: list[Task] = []
        self._current: Task | None = None
        self._is_over = False
        self._main = threading.Semaphore(0)

    # --- making

    def process(self, name: str) -> Process:
        made = Process(100 + len(self.processes), name)
        self.processes.append(made)
        return made

    def spawn(self, process: Process, act: Callable[[], None]) -> Task:
        task = Task(process, act)
        self._tasks.append(task)
        return task

    def run(self) -> None:
        """Run all tasks to their end. Raises what broke."""
        self._pass_on()
        self._main.acquire()
        self._is_over = True
        for task in self._tasks:
            if task.is_begun and not task.is_over:
                self._current = task
                task.baton.release()
                self._main.acquire()
            if task.is_begun:
                task.thread.join()
        if self.failure is not None:
            raise self.failure

    # --- for tasks

    @property
    def current(self) -> Task:
        assert self._current is not None
        return self._current

    def check(self) -> None:
        """Raises Ended in a task that should not run any more."""
        if self._is_over or self.failure is not None or self.current.process.is_dead:
            raise Ended()

    def point(self, call: str) -> None:
        """A system call is about to be made: others may go first."""
        self.check()
        self.steps += 1
        self.now_s += 1e-6
        self.trace.append(f"{self.current.process.name}: {call}")
        if self.steps > STEPS_MOST:
            raise AssertionError("nobody comes to an end")
        if self._events:
            after, what, who = self._events[0]
            if after > 0:
                self._events[0] = Event(after - 1, what, who)
            else:
                del self._events[0]
                self._happen(what, who)
                self.check()

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Let others run until this is so; False where it took too long."""
        self.check()
        if until():
            return True
        task = self.current
        task.until = until
        task.deadline_s = None if timeout_s is None else self.now_s + timeout_s
        self._give_way()
        task.until = task.deadline_s = None
        return until()

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def kill(self, process: Process) -> None:
        """Its descriptors are closed, and its tasks do nothing any more."""
        self.trace.append(f"{process.name} is killed")
        self.has_kills = True
        process.is_dead = True
        self.on_death(process)

    # --- whose turn it is

    def _happen(self, what: str, who: int) -> None:
        task = self.current
        if what == FULL:
            self.is_full = True
            return
        self.trace.append(f"{task.process.name}: {what} {who}")
        if what == KILL:
            self.kill(task.process)
            return
        if what == STALL:
            task.process.is_stalled = True
        stalled = [each for each in self.processes if each.is_stalled and not each.is_dead]
        others = [each for each in self._able() if each is not task]
        if what == WAKE and stalled:
            woken = stalled[who % len(stalled)]
            woken.is_stalled = False
            others = [each for each in self._able() if each.process is woken]
        if others:
            self._move_to_front(others[who % len(others)])
            self._give_way()
        elif what == STALL:
            self._give_way()

    def _move_to_front(self, task: Task) -> None:
        self._tasks.remove(task)
        self._tasks.insert(0, task)

    def _able(self) -> list[Task]:
        return [each for each in self._tasks if self._is_able(each)]

    def _is_able(self, task: Task) -> bool:
        if task.is_over or task.process.is_dead or task.process.is_stalled:
            return False
        if task.until is None or task.until():
            return True
        return task.deadline_s is not None and task.deadline_s <= self.now_s

    def _next(self) -> Task | None:
        """Who goes on; where nobody can, time passes, or one that stood still wakes up."""
        while True:
            able = self._able()
            if able:
                return able[0]
            left = [e for e in self._tasks if not e.is_over and not e.process.is_dead]
            awake = [each for each in left if not each.process.is_stalled]
            deadlines = [each.deadline_s for each in awake if each.deadline_s is not None]
            if deadlines:
                self.now_s = max(self.now_s, min(deadlines))
                if self.now_s > 1000.0 + LONGEST_S:
                    self.failure = AssertionError("somebody waits for ever")
                    return None
            elif len(awake) < len(left):
                stalled = next(each for each in left if each.process.is_stalled)
                stalled.process.is_stalled = False
                self.trace.append(f"{stalled.process.name} goes on at last")
            elif left:
                names = [each.process.name for each in left]
                self.failure = AssertionError(f"{names} wait for each other")
                return None
            else:
                return None

    def _give_way(self) -> None:
        """The current task stops here until it is its turn again."""
        task = self.current
        following = self._next()
        if following is not task:
            self._tasks.remove(task)
            self._tasks.append(task)
            self._start(following)
            task.baton.acquire()
        self.check()

    def _pass_on(self) -> None:
        self._start(self._next() if self.failure is None else None)

    def _start(self, task: Task | None) -> None:
        if task is None:
            self._main.release()
            return
        self._current = task
        if task.is_begun:
            task.baton.release()
        else:
            task.is_begun = True
            task.thread = threading.Thread(target=self._run, args=(task,), daemon=True)
            task.thread.start()

    def _run(self, task: Task) -> None:
        try:
            task.act()
        except Ended:
            pass
        except BaseException as error:
            self.failure = self.failure or error
        task.is_over = True
        if self._is_over:
            self._main.release()
        else:
            self._pass_on()


# --- what stands in for threading and time


class Lock:
    """threading.RLock and threading.Lock, for tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.owner: Task | None = None
        self.times = 0

    def acquire(self) -> None:
        current = self._scheduler.current
        if self.owner is not current:
            self._scheduler.wait(lambda: self.owner is None or self.owner.process.is_dead)
            self.owner, self.times = current, 0
        self.times += 1

    def release(self) -> None:
        self.times -= 1
        if not self.times:
            self.owner = None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition(Lock):
    """threading.Condition, for tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._notified = 0

    def wait(self) -> None:
        seen, times = self._notified, self.times
        self.owner, self.times = None, 0
        self._scheduler.wait(lambda: self._notified != seen)
        self.acquire()
        self.times = times

    def notify_all(self) -> None:
        self._notified += 1


class Thread:
    """threading.Thread: a task of the process that starts it."""

    def __init__(self, scheduler: Scheduler, target: Callable[[], None]) -> None:
        self._scheduler, self._target = scheduler, target
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._scheduler.spawn(self._scheduler.current.process, self._target)

    def join(self) -> None:
        task = self._task
        assert task is not None
        self._scheduler.wait(lambda: task.is_over)


class Threading:
    """The module `threading`, as far as the endpoint uses it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.RLock = self.Lock = lambda: Lock(scheduler)
        self.Condition = lambda: Condition(scheduler)
        self.Thread = lambda target, name, daemon: Thread(scheduler, target)


class Time:
    """The module `time`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.monotonic = self.perf_counter = self.time = lambda: scheduler.now_s
        self.sleep = scheduler.sleep

"""The tries of a task: lanes of an earlier one, whose worker seemed lost, may change nothing.

A task of a copy over many machines is done again elsewhere where its worker seems lost, and that
one may still be at it. Each try gets lanes' numbers of its own in the fence.

Not here: the fence (fence.py), the tasks (../../cluster/tasks.py).
"""

from typing import NamedTuple

from ..asking import answers
from ..frames import system
from ..reading.paths import open_named, to_bytes
from . import fence


class BeginTry(NamedTuple):
    """Begin a further try of a task: what those before it send from now on is refused. Answer: the
    number below those of its lanes.
    """

    root: str
    token: str
    nonce: str
    task: int  # of this run, from 1 on


def _begin_try(of: object, request: BeginTry) -> int:
    first = request.task * fence.TASK

    def begin(state: fence.State) -> int:
        own = range(first + fence.TRY, first + fence.TASK, fence.TRY)  # a lost lane is no try
        before = sum(lane in own for lane in state["lost"])
        state["lost"].append(first + (before + 1) * fence.TRY)
        return first + (before + 2) * fence.TRY

    with system.closing(open_named(to_bytes(request.root))) as root_fd:
        return fence.change(root_fd, request.token, request.nonce, begin)


answers.add(answers.ITSELF, {BeginTry: _begin_try})

"""The sink of a transfer test (-t): verifies what arrives, and writes nothing.

Sent with BeginSink where it is needed. Not here: the source of such a test
(../reading/synthetic.py).
"""

from typing import Any, List

from ..frames import failures, wire
from ..reading import tree
from .verifying import VerifyingSink


class NullSink(VerifyingSink):
    """Answers as if all had been written."""

    def make(self, value: tree.Entry) -> int:
        return wire.SOME_PART

    def finish(self, value: tree.Entry, strong: str, receipt: int, done: failures.Done) -> None:
        done([None])

    def make_names_durable(self, values: List[tree.Entry]) -> failures.Outcome:
        return [None] * len(values)

    def discard(self, path: str, nonces: List[str]) -> bool:
        return True

    def folds(self, folder: str, make: bool) -> bool:
        return False

    def _do_nothing(self, *_: Any, **__: Any) -> None:
        pass

    make_by_name = _make_folder = _make_part = _settle = finish_folder = _do_nothing
    sweep = revoke = release = unmark = close = _do_nothing

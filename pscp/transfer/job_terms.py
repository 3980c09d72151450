"""What a job asks of its copies beside their options: functions and objects of the program.

Not here: a job itself (../jobs/job.py), what is fixed for one copy (copy_terms.py), the bounds of
--min-age and the like (selection.py), how a rate is kept to (rate_limiter.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pscp.option_bounds import MAX_LIMIT_KBIT_S
from pscp.options import Options
from pscp.transfer.rate_limiter import KbitS, RateLimiter

if TYPE_CHECKING:  # few copies need it
    from pscp.transfer.moves import Moves

Select = Callable[[str, int, int, int], bool]  # path, size in bytes, mtime in ns, inode


@dataclass(frozen=True)
class JobTerms:
    """The terms of one copy, or of several: those that are given the same object share them.

    Args:
        select: is called for each file of the walk that no option leaves out (not for folders and
            links, nor for further names of a file), with its path as the source was typed, its
            size, mtime and inode (0 over SFTP). Where it returns False, the file is left out
            as by --min-age: it is neither counted nor a failure, and --delete does not delete it.
        kbit_s: returns the limit that holds now, in kbit/s, or None for none. All copies with
            this object keep to it together; the option limit_kbit_s then says nothing. It is asked
            some ten times a second and more, by several threads, one at a time.
        name: of the copy, instead of what it copies: with it, a copy that was cut goes on though
            its sources are others now, as those that a pattern matches may be.
        moves: what all copies that share it move: a pscp.Moves.
        expected: the SHA-256 in hex that files have to have, by path below the destination. The
            options get strong; a file of these with other bytes fails, and never gets its name.

    The functions are called while a copy runs, by threads of it, and should return at once. What
    one of them raises ends the copy tidily, and is raised by it.
    """

    select: Select | None = None
    kbit_s: KbitS | None = None
    name: str = ""
    moves: Moves | None = None
    expected: Mapping[str, str] = field(default_factory=dict, hash=False)
    limiter: RateLimiter | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        limiter = RateLimiter(self.kbit_s) if self.kbit_s is not None else None
        object.__setattr__(self, "limiter", limiter)

    def options(self, options: Options) -> Options:
        """Return the options of a copy on these terms. Raises UsageError where both clash."""
        if self.moves is not None:
            options = replace(options, remove_source_files=True)
        if self.expected:
            options = replace(options, strong=True)
        if self.kbit_s is None:
            return options
        # Its lanes and blocks are those of a copy with a limit. The limiter knows which.
        return replace(options, limit_kbit_s=self.kbit_s() or MAX_LIMIT_KBIT_S)


NO_TERMS = JobTerms()

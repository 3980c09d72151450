"""The functions and the `logging` of a program that copies, as a reporter: `on_file`, and notes.

Not here: `progress`, and what a reporter is (progress.py).
Read next: progress.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pscp.ground.log import Log
from pscp.options.keywords import as_keywords
from pscp.progress.progress import Outcome, Passing, Reporter

log_notes = Log("notes")


@dataclass(frozen=True)
class FileEvent:
    """A file, or a link, that has come to its end: what `on_file` is called with."""

    path: str  # below the destination, with "/" between its parts
    outcome: Outcome  # copied, unchanged, metadata, linked, skipped, failed; or different (dry_run)
    digest: str = ""  # with strong, the SHA-256 in hex of what is copied or unchanged
    is_new: bool = True  # False: it replaced a file of that name
    why: str = ""  # of "different": as `pscp --check` says it


class ProgramReporter(Passing):
    """Writes notes to the log and calls `on_file`, if there is one; passes everything on.

    An exception of `on_file` goes to whoever reports the file, and so ends the copy.
    """

    def __init__(
        self, inner: Reporter, on_file: Callable[[FileEvent], object] | None = None
    ) -> None:
        super().__init__(inner)
        self._on_file = on_file
        self.wants_files = on_file is not None or inner.wants_files

    def note(self, text: str) -> None:
        self._log(text)
        super().note(text)

    def failed(self, text: str, is_sum: bool) -> None:
        if is_sum:
            self._log(text)
        super().failed(text, is_sum)

    def _log(self, text: str) -> None:
        is_hint = text.startswith("  ")
        log_notes.warning("%s", as_keywords(text, letters=is_hint))

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        super().file(path, outcome, digest, is_new)
        if not path.endswith("/"):
            self._tell(FileEvent(path, outcome, digest, is_new))

    def differs(self, path: str, why: str, is_new: bool) -> None:
        self._tell(FileEvent(path, "different", is_new=is_new, why=why))

    def _tell(self, event: FileEvent) -> None:
        on_file = self._on_file
        if on_file is not None:
            try:
                on_file(event)
            except BaseException:
                self._on_file = None  # it is not called again while the copy ends
                raise

"""What a far end may send: only sources that were named, and entries that the copy has asked for.

Pure: nothing here opens, reads or waits.

Not here: where an entry lands, and that it stays below there (plan.py), the shape of answers
(answers.py).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from pscp.endpoint.frames import failures
from pscp.endpoint.reading import source, tree
from pscp.endpoint.reading.paths import is_pscps_own, to_bytes, to_text
from pscp.options import filters
from pscp.options.options import Options


class SourceRules:
    """Checks that a source sends only what the copy has asked for."""

    def __init__(self, tops: Sequence[source.Top], options: Options, is_pull: bool) -> None:
        """On a pull the filters are applied here too, since a far end may not have applied them."""
        self._tops, self._options = tops, options
        self._is_pull = is_pull
        self._has_folders = options.recursive or bool(options.files_from)
        self._filters = tree.compiled(filters.regexes(options.filters) if is_pull else ())
        self._entered = (0, "")  # the last folder that is known not to be left out

    def check(self, entry: tree.Entry) -> None:
        """Raise ValueError for an entry that was not asked for, LookupError for its source, and
        Refusal for one that no copy of single files has.
        """
        top = self._tops[entry.top]
        if entry.kind != tree.FILE:
            self._check_kind(entry)
        is_in_folder = entry.kind == tree.FOLDER or top.is_folder or entry.path != top.name
        if is_in_folder and not self._has_folders:
            raise ValueError("is a folder, or in one, which only -r asks for")
        if top.is_folder and entry.path == top.name and entry.kind in (tree.FILE, tree.HARDLINK):
            raise ValueError("is a file now, and was a folder")
        if self._is_pull and entry.path != top.name:
            name = entry.path.rpartition("/")[2]
            # Most names have no dot there, and need not be encoded for each file of a pull.
            if name.startswith(".") and is_pscps_own(to_bytes(name)):
                raise ValueError("has a name of pscp's own, which no walk finds")
        if self._filters and self._is_left_out(entry):
            raise ValueError("is sent, though --exclude leaves it out")

    def _check_kind(self, entry: tree.Entry) -> None:
        is_no_link = self._options.follows_links and entry.kind == tree.LINK
        if is_no_link or (entry.kind == tree.HARDLINK and not self._options.archive):
            raise ValueError("is a link, which only -a without -L asks for")
        is_special = entry.kind in (tree.FIFO, tree.DEVICE, tree.SPECIAL)
        if is_special and not self._has_folders:
            what = "is no file or folder: -r leaves it out, -a makes FIFOs and devices"
            raise failures.Refusal(failures.UNSUPPORTED, entry.path, what)

    def _is_left_out(self, entry: tree.Entry) -> bool:
        """Return whether the entry is excluded, or in a folder that is."""
        if tree.is_excluded(self._filters, entry.path, entry.kind == tree.FOLDER):
            return True
        above = folder = entry.path.rpartition("/")[0]
        top, entered = self._entered  # the folder that was entered last, and those above it
        while above and not (top == entry.top and (entered + "/").startswith(above + "/")):
            if tree.is_excluded(self._filters, above, True):
                return True
            above = above.rpartition("/")[0]
        self._entered = entry.top, folder
        return False


def expected_top(pattern: str, top: source.Top) -> bool:
    """Return whether a far end may send this source for a pattern, as scp and glob(3) would."""
    typed, name = pattern.rstrip("/"), top.name
    wanted = to_text(source.as_glob(to_bytes(pattern))).rstrip("/").rpartition("/")[2]
    if wanted in ("", ".", ".."):  # the contents of a folder
        return name == "" and top.is_folder
    if not name or "/" in name:
        return False
    is_shown = not name.startswith(".")
    is_matching = (is_shown or wanted.startswith(".")) and fnmatch.fnmatchcase(name, wanted)
    if is_matching or name == typed.rpartition("/")[2]:  # a name that exists is taken literally
        return True
    # Only the far end knows the name of a home.
    is_home = typed.startswith("~") and "/" not in typed
    return is_home and is_shown and top.is_folder


def as_pattern(path: str) -> str:
    """Return this pattern in a form that is hardly a file's name: with an escaped slash."""
    folder, slash, name = path.removeprefix("~/").rstrip("/").rpartition("/")
    return f"{folder or (slash and '/.') or '.'}\\/{name}"

"""Reads the files of --exclude-from and --include-from, at their places among the filters.

Not here: what a pattern means (../filters.py), the letters of the options (../copy_options.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pscp import filters
from pscp.endpoint.paths import to_text
from pscp.errors import UsageError
from pscp.filters import Filter


def with_files(given: Sequence[Filter], *, from0: bool, stdin_is_taken: bool) -> tuple[Filter, ...]:
    """Return the filters, with the patterns of each file in its place.

    Args:
        given: ("exclude" | "include", pattern) and ("exclude-from" | "include-from", file).
        from0: a NUL ends the files' lines, and nothing else does.
        stdin_is_taken: something else is read from standard input.

    Raises UsageError for a file that cannot be read.
    """
    if stdin_is_taken + sum(kind.endswith("-from") and text == "-" for kind, text in given) > 1:
        raise UsageError("standard input is one file: only one option or source can be - for it")
    return tuple(filters.expanded(given, lambda kind, file: _lines(kind, file, from0)))


def _lines(kind: str, file: str, from0: bool) -> list[str]:
    """Return the lines of a file but blank ones and comments, which -0 leaves comments as well."""
    is_stdin = file == "-"
    try:
        with open(0 if is_stdin else file, "rb", closefd=not is_stdin) as stream:
            content = stream.read()
    except OSError as error:
        name = "standard input" if is_stdin else file
        raise UsageError(f"--{kind}: {name}: {error.strerror}") from None
    found = content.split(b"\0") if from0 else re.split(rb"[\r\n]", content)
    return [to_text(line) for line in found if line and line[:1] not in (b"#", b";")]

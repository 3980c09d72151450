"""The types of the keywords that the calls of the Python API take, made of the tables of options.

A type checker reads option_fields.pyi instead, which scripts/docs writes of the same tables.
`progress` is left out: in the API that is a function. No command loads this module.

Not here: what the keywords mean (copy_options.py, connection_options.py, zfs_options.py).
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

from pscp.options.connection_options import ConnectionOptions
from pscp.options.copy_options import CopyOptions
from pscp.options.option_rows import rows_of
from pscp.options.zfs_options import ZfsOptions

LENT = "str | paramiko.SSHClient | asyncssh.SSHClientConnection"  # a Session's `transport`


def types_of(*tables: type) -> dict[str, str]:
    """Return the type of each keyword, as text."""
    found = {}
    for table in tables:
        for name, _, row in rows_of(table):
            kind = table.__annotations__[name]
            found[name] = (
                re.sub(r"\bstr\b", "str | os.PathLike[str]", kind) if row.is_path else kind
            )
    found.pop("progress", None)
    return found


_COMMON: Any = types_of(CopyOptions, ConnectionOptions)
OptionFields = TypedDict("OptionFields", _COMMON, total=False)
SessionFields = TypedDict("SessionFields", {**_COMMON, "transport": LENT}, total=False)
ReplicateFields = TypedDict("ReplicateFields", {**_COMMON, **types_of(ZfsOptions)}, total=False)

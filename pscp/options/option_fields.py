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

# A Session's `transport`, beside the names.
LENT = "paramiko.SSHClient | asyncssh.SSHClientConnection"


def types_of(*tables: type) -> dict[str, str]:
    """Return the type of each keyword, as text."""
    found = {}
    for table in tables:
        for name, _, row in rows_of(table):
            kind = table.__annotations__[name].replace("tuple[str, ...]", "str | Sequence[str]")
            kind = re.sub(r"tuple\[(.*), \.\.\.\]", r"Sequence[\1]", kind)
            if row.is_path:
                kind = re.sub(r"\bstr\b", "str | os.PathLike[str]", kind)
            elif row.among:
                literal = ", ".join(map(repr, row.among))
                kind = re.sub(r"\bstr\b", f"Literal[{literal}]", kind)
            found[name] = kind
    found.pop("progress", None)
    return found


_COMMON: Any = types_of(CopyOptions, ConnectionOptions)
OptionFields = TypedDict("OptionFields", _COMMON, total=False)
_WITH_LENT = {**_COMMON, "transport": f"{_COMMON['transport']} | {LENT}"}
SessionFields = TypedDict("SessionFields", _WITH_LENT, total=False)
ReplicateFields = TypedDict("ReplicateFields", {**_COMMON, **types_of(ZfsOptions)}, total=False)

"""Makes the schemas of jobs.toml and serve.toml for editors, and the lists of their keys in docs/.

Not here: what the keys are (../../pscp/jobs/toml/schema.py, ../../pscp/serve/server/config.py).
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from pscp.jobs.toml import schema
from pscp.serve.server import config
from pscp.toml.values import Key

_LINK = "[options.md](options.md) says it; a flag is `true` or `false`."


def json_schema(document: TypeAdapter[dict[str, Any]]) -> str:
    """JSON Schema, as Even Better TOML and taplo take it."""
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(found | document.json_schema(), indent=1) + "\n"


def schemas() -> dict[str, str]:
    """The schema of each file, by its name."""
    known = {"jobs": schema.DOCUMENT, "serve": config.DOCUMENT}
    return {f"{name}.schema.json": json_schema(each) for name, each in known.items()}


def keys(of: dict[str, Key]) -> list[str]:
    """A table of keys."""
    lines = ["| key | meaning | such as |", "|---|---|---|"]
    return lines + [
        f"| `{key}` | {each.meaning} | `{toml(each.example)}` |" for key, each in of.items()
    ]


def serve_tables() -> str:
    """The keys of a server and of a user."""
    return "\n".join([*keys(config.SERVER), "", "Below `[user.NAME]`:", "", *keys(config.USER)])


def tables() -> str:
    """A table of a job's own keys, and which options a job may have."""
    lines = keys(schema.OWN)
    listed = ", ".join(f"`{each.name}`" for each in schema.OPTIONS.values() if each.repeats)
    lines += ["", "Each option of pscp, or with datasets of pscp-zfs, by its long name, as"]
    lines += [_LINK, f"These take a list as well: {listed}."]
    refused = ", ".join(f"`{key}`" for key in schema.REFUSED)
    return "\n".join([*lines, f"Refused, with the reason: {refused}."])


def toml(value: Any) -> str:
    """The value as TOML has it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_key(key)} = {toml(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return json.dumps(value)


def _key(key: str) -> str:
    return key if key.isidentifier() else json.dumps(key)

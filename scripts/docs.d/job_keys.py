"""Makes the schema of jobs.toml for editors, and the table of its keys in docs/jobs.md.

Not here: what the keys are (../../pscp/jobs/schema.py).
"""

from __future__ import annotations

import json
from typing import Any

from pscp.jobs.toml import schema


def json_schema() -> str:
    """JSON Schema, as Even Better TOML and taplo take it."""
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(found | schema.DOCUMENT.json_schema(), indent=1) + "\n"


def tables() -> str:
    """A table of a job's own keys, and one of options."""
    lines = ["| key | meaning | such as |", "|---|---|---|"]
    for key, each in schema.OWN.items():
        lines.append(f"| `{key}` | {each.meaning} | `{toml(each.example)}` |")
    lines += ["", "Every option of pscp and pscp-zfs, but these:", ""]
    lines += ["| option | why not |", "|---|---|"]
    lines += [f"| `{key}` | {why} |" for key, why in schema.REFUSED.items()]
    lines += ["", "| option | value | of |", "|---|---|---|"]
    return "\n".join([*lines, *map(option, schema.OPTIONS.values())])


def option(each: schema.Option) -> str:
    value = each.action.metavar if each.action.nargs != 0 else "true or false"
    shown = f"`{value}`, or a list of them" if each.repeats else f"`{value}`"
    files, datasets = (schema.is_for(each.name, of_datasets=of) for of in (False, True))
    of = "both" if files and datasets else "files" if files else "datasets"
    return f"| `{each.name}` | {shown.replace('`true or false`', 'true or false')} | {of} |"


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

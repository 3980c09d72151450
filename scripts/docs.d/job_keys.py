"""Makes the schema of jobs.toml for editors, and the list of its keys in docs/jobs.md.

Not here: what the keys are (../../pscp/jobs/schema.py).
"""

from __future__ import annotations

import json
import textwrap
from typing import Any

from pscp.jobs.toml import schema

_LINK = "[options.md](options.md) says; a flag is `true` or `false`."


def json_schema() -> str:
    """JSON Schema, as Even Better TOML and taplo take it."""
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(found | schema.DOCUMENT.json_schema(), indent=1) + "\n"


def tables() -> str:
    """A table of a job's own keys, and the names of options."""
    lines = ["| key | meaning | such as |", "|---|---|---|"]
    for key, each in schema.OWN.items():
        lines.append(f"| `{key}` | {each.meaning} | `{toml(each.example)}` |")
    whole = list(schema.OPTIONS.values())
    both = [each for each in whole if _is_for(each, False) and _is_for(each, True)]
    files = [each for each in whole if not _is_for(each, True)]
    datasets = [each for each in whole if not _is_for(each, False)]
    lines += ["", "Each option of pscp and pscp-zfs by its long name, with the value that", _LINK]
    lines += ["Those in *italics* take a list as well. Of any job:", "", _named(both)]
    lines += ["", "Of a job with files:", "", _named(files)]
    lines += ["", "Of a job with datasets:", "", _named(datasets), "", "Not in a job:", ""]
    by_reason: dict[str, list[str]] = {}
    for key, why in schema.REFUSED.items():
        by_reason.setdefault(why, []).append(f"`{key}`")
    lines += [f"- {', '.join(keys)}: {why}" for why, keys in by_reason.items()]
    return "\n".join(lines)


def _is_for(each: schema.Option, of_datasets: bool) -> bool:
    return schema.is_for(each.name, of_datasets=of_datasets)


def _named(options: list[schema.Option]) -> str:
    shown = [f"*`{each.name}`*" if each.repeats else f"`{each.name}`" for each in options]
    return (
        textwrap.fill(", ".join(shown), 118, break_on_hyphens=False, break_long_words=False) + "."
    )


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

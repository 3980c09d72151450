"""Makes the schemas of jobs.toml and serve.toml for editors, and the lists of their keys in docs/.

Not here: what the keys are (../../pscp/jobs/toml/schema.py, ../../pscp/serve/server/config.py).
"""

from __future__ import annotations

import json
import textwrap
from typing import Any

from pydantic import TypeAdapter

from pscp.jobs.toml import schema
from pscp.serve.server import config
from pscp.toml.values import Key

_LINK = "[options.md](options.md) says; a flag is `true` or `false`."


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
    """A table of a job's own keys, and the names of options."""
    lines = keys(schema.OWN)
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

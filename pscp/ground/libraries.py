"""The libraries that only some commands and options need: whether they are installed.

Not here: which of them pyproject.toml has in which extra.
"""

from __future__ import annotations

import importlib.util
import sys

from pscp.ground.errors import UsageError

_DISTRIBUTIONS = {"argon2": "argon2-cffi", "prometheus_client": "prometheus-client"}


def check_installed(*modules: str, before: str = "") -> None:
    """Raise UsageError where one is missing, with what installs all that are.

    `before` is the message's begin: what needs them.
    """
    missing = [each for each in modules if importlib.util.find_spec(each) is None]
    if missing:
        names = " ".join(_DISTRIBUTIONS.get(each, each) for each in missing)
        raise UsageError(
            f"{before}the Python package {missing[0]} is not installed",
            f"{sys.executable or 'python3'} -m pip install {names}",
        )

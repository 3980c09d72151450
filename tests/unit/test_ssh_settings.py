"""The program of a connection with a library (pscp/transports/ssh_settings.py).

Not here: what it does on a connection (../conformance).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from pscp.transports.ssh_settings import Request, Settings, program_argv


def test_asyncssh_is_loaded_without_a_compiler(tmp_path: Path) -> None:
    """As ctypes would ask for each library that ldconfig(8) does not know."""
    for name in ("gcc", "cc", "ld"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n: >>'{tmp_path}/ran'\n")
        program.chmod(0o755)
    nowhere = Settings("", ("Port 0",), (), Request("true"), False, (), "", "", 0, 0, False)
    argv = program_argv("asyncssh", nowhere)
    subprocess.run(
        argv, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, check=False
    )
    assert not (tmp_path / "ran").exists()

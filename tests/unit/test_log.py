"""pscp.ground.log: records for who listens, none for who does not."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from pscp.ground import log
from pscp.progress.callbacks import ProgramReporter
from pscp.progress.progress import Reporter


def test_a_program_gets_what_people_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """G: once, and by level: to everybody, and with -v."""
    caplog.set_level(logging.INFO, "pscp")
    told: list[str] = []
    with log.show_records(True, told.append):  # -d shows what is a note already only once
        reporter = ProgramReporter(Reporter())
        reporter.note("a: not copied")
        log.Log("transfer").info("hashed with %s", "xxh3-128")
        log.Log("transfer").debug("lane 1")
    ProgramReporter(Reporter()).note("b: not copied")
    assert [line.split(": ", 1)[1] for line in told] == ["hashed with xxh3-128", "lane 1"]
    assert caplog.record_tuples == [("pscp.notes", logging.WARNING, "b: not copied")]


def test_warnings_go_nowhere_by_themselves(capfd: pytest.CaptureFixture[str]) -> None:
    """Unlike those of a logger without a handler, once a program has loaded `logging`."""
    program = "import logging; from pscp.ground.log import Log; Log('a').warning('not copied')"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert capfd.readouterr() == ("", "")


def test_a_command_does_not_load_logging() -> None:
    """It takes longer than all that is written with it."""
    program = (
        "import sys; from pscp.calls import api; from pscp.ground import log; "
        "from pscp.cli import copy\n"
        "log.Log('test').debug('x'); sys.exit('logging' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

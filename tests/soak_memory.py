"""Memory with 200,000 files, and with 200,000 that are there already: python tests/soak_memory.py.

Takes some minutes, so no test run does it; needs sshd and about 2 GB in TMPDIR. Ends with exit
code 1 where the coordinator's peak is at 120 MiB or above.

Not here: what every run measures (faults/test_memory.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from servers.private import SshdServer

FILES, LANES, LIMIT_KIB = 200_000, 8, 120 * 1024
PROGRAM = """
import sys
from pscp.cli.copy import main
code = main()
with open("/proc/self/status") as lines:
    print(next(line for line in lines if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="pscp-soak-") as name, SshdServer() as server:
        home = Path(name)
        os.environ["XDG_STATE_HOME"] = str(home / "state")
        source, pushed, pulled = home / "source", home / "pushed", home / "pulled"
        make_files(source)
        for folder in (pushed, pulled):
            folder.mkdir()
        far = f"{server.host}:"
        peaks = [
            measured(server, *words, f"{source}/.", far + str(pushed))
            for words in (("-r",), ("-r",), ("-rs",), ("-ra", "--no-resume"))
        ]
        peaks += [
            measured(server, *words, f"{far}{pushed}/.", pulled)
            for words in (("-r",), ("-r",), ("-ra", "--no-resume"))
        ]
    return int(max(peaks) >= LIMIT_KIB)


def make_files(folder: Path) -> None:
    for number in range(FILES // 1000):
        parent = folder / f"folder-{number:03}"
        parent.mkdir(parents=True)
        for each in range(1000):
            (parent / f"a file with a name of some length {each:03}").write_bytes(b"%d" % each)


def measured(server: SshdServer, *words: str | Path) -> int:
    argv = [sys.executable, "-c", PROGRAM, "-F", server.ssh_config, "-B", "-c", str(LANES), *words]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    print(f"{int(done.stdout) / 1024:6.1f} MiB: {' '.join(map(str, words))}", flush=True)
    return int(done.stdout)


if __name__ == "__main__":
    sys.exit(main())

"""A python3 for the far end where frames arrive late, and system calls wait or fail.

`far_end.py FOLDER PYTHON -IS -c STAGE` has PYTHON run STAGE, the agent, with two things between:

- FOLDER/frames.json has rules as those of relay.py, and one more thing that they may do. hold: the
  frame, and all that comes after it, is kept until FOLDER/go is there, also when the connection
  has ended meanwhile, as by a kernel whose path stands still. FOLDER/held-NUMBER tells of it.
- FOLDER/calls.json has rules for system calls (calls.py).

FOLDER/ended-NUMBER is made when the agent of this connection has ended.

Runs with nothing but the standard library: python -I -S. Not here: who runs it (late.py).
"""

from __future__ import annotations

import os
import select
import sys
import time

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, TESTS)

from faults.relay import POLL_S, Relay, rules_in, take_number, touch  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from faults.relay import Rule

# As a module, since that is compiled once, and a program each time.
CALLS = f"""import sys
sys.path.append({TESTS!r})
from faults import calls
calls.interpose(sys.argv[1], int(sys.argv[2]))
exec(compile(sys.argv[3], "stage", "exec"), {{"__name__": "__main__"}})
"""

DRAINED_BYTES = 1 << 16


class FarEnd(Relay):
    """What sshd starts for a connection."""

    def hold(self, rule: Rule, frame: bytearray) -> None:
        touch(f"{self.folder}/held-{self.number}")
        coming = select.poll()
        coming.register(self.incoming.fd, select.POLLIN)
        has_ended = False
        while not os.path.exists(f"{self.folder}/go"):
            if has_ended:
                time.sleep(POLL_S)
            elif coming.poll(1000 * POLL_S):
                has_ended = not self.incoming.more()

    def back(self, fd: int) -> None:
        """The agent's answers are taken even when nobody hears them, as a kernel takes them."""
        try:  # noqa: SIM105
            super().back(fd)
        except OSError:
            pass
        while os.read(fd, DRAINED_BYTES):
            pass


def main() -> None:
    folder, python, words = sys.argv[1], sys.argv[2], sys.argv[3:]
    number = take_number(folder)
    argv = [python, "-I", "-S", "-c", CALLS, folder, str(number), words[-1]]
    status = FarEnd(folder, rules_in(f"{folder}/frames.json"), number, False).run(argv)
    touch(f"{folder}/ended-{number}")
    os._exit(status if status >= 0 else 255)


if __name__ == "__main__":
    main()

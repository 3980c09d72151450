"""Fixtures of the OpenZFS tests: two pools in the machine that scripts/test-openzfs has started.

Without PSCP_ZFS_VM in the environment, which says where zfs-vm is, they are left out.

Not here: the machine (machine.py). Read next: machine.py.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator

import pytest
from conftest import SHARED, held_now, unavailable
from zfs.conftest import Ends

from openzfs.machine import Machine, VmPool

_numbers = itertools.count()


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    script = os.environ.get("PSCP_ZFS_VM")
    if not script:
        pytest.skip("scripts/test-openzfs runs these")
    config = subprocess.run([script, "config"], capture_output=True, text=True, check=False)
    if config.returncode:
        unavailable(f"{script}: {config.stderr}")
    before = held_now()
    made = Machine(config.stdout, tmp_path_factory.mktemp("vm"))
    made.run("true")  # starts the master connection, which outlives the first test
    SHARED.append(held_now().beyond(before))
    yield made
    made.close()


@pytest.fixture(scope="session")
def pools(machine: Machine) -> tuple[VmPool, VmPool]:
    return VmPool(machine, "tank", "/dev/vdb"), VmPool(machine, "vault", "/dev/vdc")


@pytest.fixture
def ends(pools: tuple[VmPool, VmPool]) -> Iterator[Ends]:
    """A push from one pool to the other."""
    one, two = pools
    number = next(_numbers)
    ends = Ends(one, two, f"tank/t{number}", f"vault/t{number}")
    one.do("create", ends.source)
    yield ends
    one.user = two.user = "root"

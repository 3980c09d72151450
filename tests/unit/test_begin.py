"""What the ends are told when a copy begins."""

from __future__ import annotations

import pytest

from pscp.options import KIB, MIB, Options
from pscp.transfer.negotiation import source_request


@pytest.mark.parametrize(
    ("options", "block_bytes"),
    [
        (Options(), MIB),
        (Options(limit_kbit_s=1_000_000), 256 * KIB),
        (Options(limit_kbit_s=1, block_bytes=4 * KIB), 4 * KIB),
    ],
)
def test_under_a_limit_blocks_are_small(options: Options, block_bytes: int) -> None:
    assert source_request([], options, "sha256").block_bytes == block_bytes

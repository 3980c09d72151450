"""Where two ends have data, put together from what each tells of it in several answers.

Not here: what is done about it (../e2e/test_copy_again.py).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.reading.files import Extent
from pscp.transfer.walk.lookups import data_of_both

SIZE = 40


def answer(data: set[int], offset: int, most: int) -> tuple[list[Extent], bool]:
    """What an end with these bytes of data tells from `offset` on."""
    found: list[Extent] = []
    for place in sorted(each for each in data if each >= offset):
        if found and sum(found[-1]) == place:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((place, 1))
    return found[:most], len(found) < most


@given(*(st.sets(st.integers(0, SIZE - 1)) for _ in range(2)), st.integers(1, 5))
def test_every_byte_of_either_once(here: set[int], there: set[int], most: int) -> None:
    offset, seen = 0, []
    while offset < SIZE:
        answers = [answer(data, offset, most) for data in (here, there)]
        union, end = data_of_both(answers, offset, SIZE)
        assert end > offset
        seen += [place for begin, length in union for place in range(begin, begin + length)]
        offset = end
    assert seen == sorted(here | there)


@pytest.mark.parametrize("told", [[[(0, 1)], True], [[(9, 0)], True], [[(39, 2)], True]])
def test_an_extent_out_of_its_place(told: Any) -> None:
    with pytest.raises(ValueError, match="out of its place"):
        data_of_both([told, [[], True]], 5, SIZE)


def test_an_end_that_has_more_to_tell_but_tells_nothing() -> None:
    with pytest.raises(LookupError):
        data_of_both([[[], False], [[], True]], 0, SIZE)

"""Parts of a job: made once, found again bit for bit, and told apart by their step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest

from spectune.errors import StoreError
from spectune.tuning.parts import PartsUnder, kept_or_made

from ..support.shelf import Shelf


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A record of a job."""

    value: float


def test_a_part_is_made_once() -> None:
    shelf = Shelf()
    first = kept_or_made(shelf, "sum", Sum, partial(Sum, value=0.1 + 0.2))
    again = kept_or_made(shelf, "sum", Sum, partial(Sum, value=9.0))
    assert first == again == Sum(value=0.1 + 0.2)


def test_without_a_place_to_keep_it_a_part_is_made_anew() -> None:
    assert [kept_or_made(None, "sum", Sum, partial(Sum, value=value)).value for value in (1.0, 2.0)] == [1.0, 2.0]


def test_steps_keep_parts_of_one_name_apart() -> None:
    shelf = Shelf()
    for step, value in (("greedy", 1.0), ("sampled", 2.0)):
        kept_or_made(PartsUnder(shelf, step), "sum", Sum, partial(Sum, value=value))
    assert shelf.added == ["greedy/sum", "sampled/sum"]
    assert kept_or_made(PartsUnder(shelf, "greedy"), "sum", Sum, partial(Sum, value=0.0)).value == 1.0


def test_a_part_that_is_no_such_record_is_refused() -> None:
    with pytest.raises(StoreError, match="not a Sum"):
        kept_or_made(Shelf({"sum": '{"total": 1.0}'}), "sum", Sum, partial(Sum, value=0.0))

"""Which forwards a profile times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spectune.profiler.device import detect
from spectune.profiler.prompts import Prompt
from spectune.runtime.batch.sequence import Request
from spectune.tuning.measuring.timing import domains_of
from spectune.tuning.request import Models, ProfileRequest

from ...support.tiny_models import tiny_llama


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 512 positions."""
    folder = tmp_path_factory.mktemp("target")
    tiny_llama(layers=1, seed=0).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("new", "last"), [(11, 511), (12, 511), (400, 511), (5, 505)])
def test_contexts_end_where_texts_do_and_at_a_place_that_the_target_has(new: int, last: int, target: Path) -> None:
    request = ProfileRequest(models=Models(target=target), prompts=[Prompt(text="a"), Prompt(text="b")], batches=(1,))
    asked = [Request(prompt=(1,) * length, max_new_tokens=new) for length in (100, 500)]
    assert domains_of(request, detect("cpu"), asked)[0].contexts == (100, last)


@pytest.mark.parametrize(("isa", "rows"), [(("amx_bf16",), 16), (("avx512_bf16",), 8), (("avx2",), 0)])
def test_edges_of_tiles_are_timed_where_the_device_has_some(isa: tuple[str, ...], rows: int, target: Path) -> None:
    asked = [Prompt(text="a"), Prompt(text="b")]
    request = ProfileRequest(models=Models(target=target), prompts=asked, batches=(1,), dtype="bfloat16")
    (domain,) = domains_of(request, replace(detect("cpu"), isa=isa), [Request(prompt=(1, 2), max_new_tokens=9)])
    assert domain.tile_rows == rows

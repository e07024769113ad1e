"""Compiled loops are shared among threads only by a layer that two threads may use at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from unittest import mock

import pytest
import torch

from spectune.runtime.models.kernels import threads
from spectune.runtime.models.kernels.threads import shared_by
from spectune.runtime.models.lean import LeanModel

from ....support.decoded_runs import plain_in_two_threads, random_requests, run
from ....support.tiny_models import tiny_llama


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    _forget()
    yield
    _forget()


def _forget() -> None:
    threads._teller.cache_clear()
    threads._TOLD.threads = 1


def test_one_thread_shares_nothing_and_asks_nobody() -> None:
    with mock.patch.object(threads, "_teller", side_effect=AssertionError):
        assert not shared_by(1)


@pytest.mark.parametrize(
    "settings",
    [
        {"NUMBA_THREADING_LAYER": "workqueue"},
        {"NUMBA_THREADING_LAYER_PRIORITY": "workqueue omp tbb"},
        {"NUMBA_THREADING_LAYER": "safe", "hides": "numba.np.ufunc.tbbpool"},
    ],
    ids=str,
)
def test_without_a_safe_layer_every_kernel_runs_by_itself(settings: dict[str, str]) -> None:
    """As numba's own settings choose it, which it reads once in a process."""
    code = (
        "import sys; sys.modules[sys.argv[1]] = None; "
        "from spectune.runtime.models.kernels.threads import shared_by; print(shared_by(4))"
    )
    numbas = {name: value for name, value in settings.items() if name != "hides"}
    hidden = settings.get("hides", "nothing.at.all")
    done = subprocess.run(
        [sys.executable, "-c", code, hidden], env=os.environ | numbas, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("count", [1, 3])
def test_torch_keeps_the_number_of_threads_that_it_was_given(count: int) -> None:
    """Behind the launch of numba's, which tells OpenMP how many it has; a process does that once."""
    code = (
        f"import torch; torch.set_num_threads({count}); torch.get_num_threads()\n"
        "from spectune.runtime.models.kernels.threads import can_share, shared_by\n"
        "can_share(2), shared_by(2)\n"
        "from spectune.runtime.models.kernels.bfloat16_rows import product_shared\n"
        "product_shared.compiled(); print(torch.get_num_threads())"
    )
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(count)


def test_numba_is_told_of_no_more_threads_than_it_has() -> None:
    with mock.patch("numba.set_num_threads") as told, mock.patch("numba.threading_layer", return_value="omp"):
        assert shared_by(10_000)
    told.assert_called_once()
    assert 1 <= told.call_args.args[0] < 10_000


def test_two_threads_decode_at_once_what_each_decodes_alone() -> None:
    requests, before = random_requests(6, tokens=24), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = LeanModel(tiny_llama(layers=2, seed=0))
        alone, together = run(model, requests).outputs, plain_in_two_threads(model, requests)
    finally:
        torch.set_num_threads(before)
    assert together == [alone, alone]

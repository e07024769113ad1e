"""What every test starts from."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # no test reaches for a network, not even to find a file missing

settings.register_profile("spectune", deadline=None)  # a busy machine is no counterexample
settings.load_profile("spectune")


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """Run tiny models on one thread: on a busy machine their barriers cost more than their sums."""
    if "torch" in sys.modules:  # light tests stay light
        import torch

        torch.set_num_threads(1)

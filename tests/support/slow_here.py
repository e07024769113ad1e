"""Which cases of a test wait for `pytest -m slow` where an interpreter runs a GPU's kernels."""

from __future__ import annotations

import pytest

from .interpreted import HAS_GPU

SLOW_HERE = () if HAS_GPU else pytest.mark.slow  # of cases that take it a second or more, and have others like them

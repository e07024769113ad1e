"""What every test starts from."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # no test reaches for a network, not even to find a file missing

settings.register_profile("spectune", deadline=None)  # a busy machine is no counterexample
settings.load_profile("spectune")

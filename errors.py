"""Everything spectune raises on purpose.

SpectuneError
├── DeviceError        a device cannot be found, read or used
├── MeasurementError   a measurement, surface or trace is wrong or does not hold what is asked
│   └── NoRoomError    memory has no room for what is to be measured
├── PlanError          a tree, policy or plan is wrong or cannot be solved
├── StoreError         a store cannot be read, written or trusted
│   ├── NoPlanError    the store holds no plan for this setup
│   └── StoreAwayError the database does not answer; trying again later may help
├── ModelError         a model or tokenizer cannot be loaded or does not fit its family
├── RequestError       what a user asked for cannot be done (prompts, options, files)
│   └── ServerAwayError the server that verifies a device's drafts does not answer; trying again later may help
└── TrainingError      a training run is asked for something impossible

Each message says what is wrong, the value seen, and what to do.
"""

from __future__ import annotations


class SpectuneError(Exception):
    """Base of every error raised on purpose; the command line prints it as one line."""


class DeviceError(SpectuneError):
    """A device cannot be found, read or used."""


class MeasurementError(SpectuneError):
    """A measurement, surface or trace is wrong or does not hold what is asked."""


class NoRoomError(MeasurementError):
    """Memory has no room for what is to be measured."""


class PlanError(SpectuneError):
    """A tree, policy or plan is wrong or cannot be solved."""


class StoreError(SpectuneError):
    """A store cannot be read, written or trusted."""


class NoPlanError(StoreError):
    """The store holds no plan for this setup."""

    def __init__(self, setup: str, store: str) -> None:
        super().__init__(f"no plan for {setup} in {store}; run: spectune plan --target PATH, after spectune profile")
        self.setup = setup
        self.store = store


class StoreAwayError(StoreError):
    """The database does not answer, or let go of the connection; whether a write under way was kept is not known."""


class ModelError(SpectuneError):
    """A model or tokenizer cannot be loaded or does not fit its family."""


class RequestError(SpectuneError):
    """What a user asked for cannot be done: prompts, options, files."""


class ServerAwayError(RequestError):
    """The server that verifies a device's drafts does not answer."""


class TrainingError(SpectuneError):
    """A training run is asked for something impossible."""

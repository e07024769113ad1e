"""Everything spectune raises on purpose.

SpectuneError
├── DeviceError        a device cannot be found, read or used
├── MeasurementError   a measurement, surface or trace is wrong or does not hold what is needed
│   └── NoRoomError    memory has no room for what is to be measured
├── PlanError          a tree, policy or plan is wrong or cannot be solved
├── StoreError         a store cannot be read, written or trusted
│   ├── NoPlanError    the store holds no plan for this setup
│   └── StoreAwayError the database does not answer; trying again later may help
├── ModelError         a model or tokenizer cannot be loaded or does not fit its family
├── RequestError       what a user asked for cannot be done (prompts, options, files)
│   └── ServerAwayError the server that verifies a device's drafts does not answer; trying again later may help
├── TrainingError      a training run is asked for something impossible
└── NotInstalledError  a package is missing that only measuring, decoding and training need

Each message says what is wrong, the value seen, and what to do.
"""

from __future__ import annotations

from typing import Self

RUN_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub")  # of the extra `run`


class SpectuneError(Exception):
    """Base of every error raised on purpose; the command line prints it as one line."""


class DeviceError(SpectuneError):
    """A device cannot be found, read or used."""


class MeasurementError(SpectuneError):
    """A measurement, surface or trace is wrong or does not hold what is needed."""


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
    """The database does not answer, or let go of the connection; whether a write under way succeeded is not known."""


class ModelError(SpectuneError):
    """A model or tokenizer cannot be loaded or does not fit its family."""


class RequestError(SpectuneError):
    """A user's request cannot be done: prompts, options, files."""


class ServerAwayError(RequestError):
    """The server that verifies a device's drafts does not answer."""


class TrainingError(SpectuneError):
    """A training run is impossible as requested."""


class NotInstalledError(SpectuneError):
    """A package of the extra `run` is missing; planning, exporting and sharing do without."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"this needs {package}, which is not installed; install what measures and decodes: "
            "pip install 'spectune[run]'"
        )
        self.package = package

    @classmethod
    def of(cls, error: ModuleNotFoundError) -> Self | None:
        """Return what a failed import means; None where the missing module is of no package of the extra."""
        package = (error.name or "").partition(".")[0]
        return cls(package) if package in RUN_PACKAGES else None

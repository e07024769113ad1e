"""Which model was measured: named by the bytes of its weights, not by where it lies."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import ModelError

SHA256_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """One set of weights with its configuration and tokenizer; the dtype it runs in belongs to the measurement."""

    name: str
    weights_hash: str  # sha256, 64 hex digits
    parameters: int
    config_hash: str  # sha256, 64 hex digits; "" where it is not known: a model measured elsewhere
    tokenizer_hash: str  # sha256, 64 hex digits; "" where the folder brings no tokenizer
    location: str  # where the weights lay when they were hashed; not part of the identity

    def __post_init__(self) -> None:
        if not self.name:
            raise ModelError("model name is empty; give a name people will recognise")
        if self.parameters < 1:
            raise ModelError(f"{self.name}: parameters must be at least 1, got {self.parameters}")
        for field in ("weights_hash", "config_hash", "tokenizer_hash"):
            value = getattr(self, field)
            is_absent = field != "weights_hash" and value == ""
            if not is_absent and not SHA256_HEX.fullmatch(value):
                raise ModelError(f"{self.name}: {field} must be a sha256 of 64 hex digits, got {value!r}")

    @property
    def key(self) -> str:
        """Name the weights in 16 hex digits: the key of surfaces and traces."""
        return self.weights_hash[:16]

    def told_from(self, other: ModelIdentity) -> str:
        """Say of a model that it is not another one: by their names, or by their weights where these are equal."""
        if self.name != other.name:
            return f"the model {self.name}, not for {other.name}; plan this model"
        return (
            f"other weights of the same name {self.name}: {self.key}, and these are {other.key}; profile and plan "
            "again, or give the weights that were planned"
        )

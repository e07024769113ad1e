"""What a service allows, and how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import RequestError

KIB, MIB = 2**10, 2**20

Auth = Literal["required", "when-tokens-exist", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Limits of one service."""

    auth: Auth = "required"  # "when-tokens-exist" needs none until the store's first token is made
    hosts: tuple[str, ...] = ()  # its names, any where empty: keeps foreign web pages, whose browsers use theirs, out
    rate_per_s: float = 2000.0  # requests of one token, or of one address where no token is needed; 0 is no limit
    burst: int = 4000  # requests that may come at once before the rate counts
    body_bytes: int = 16 * MIB  # unpacked
    body_timeout_s: float = 60.0  # until a body has to be here
    upload_bytes: int = 1024 * MIB
    open_uploads: int = 16  # unfinished ones of one token
    streams: int = 64  # jobs that may be watched at once
    cache_bytes: int = 256 * MIB  # for answers to `resolve`
    fresh_s: float = 0.5  # how old knowledge of tokens and plans may be
    workers: int = 1  # processes that plan; 0 leaves jobs to another service on the same store

    def __post_init__(self) -> None:
        if self.rate_per_s < 0 or self.burst < 1 or self.workers < 0 or self.fresh_s <= 0:
            raise RequestError("a service needs rate >= 0, burst >= 1, workers >= 0 and a positive time to stay fresh")
        if min(self.body_bytes, self.upload_bytes, self.open_uploads, self.streams, self.cache_bytes) < 1:
            raise RequestError("limits of a service must be at least 1")

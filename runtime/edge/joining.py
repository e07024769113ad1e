"""From a drafter and a server's address to a device that decodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...profiler.records.model import ModelIdentity
from ..models.forward import CausalModel
from ..models.vocabulary import FittedModel
from .device import RemoteTarget
from .introduction import Introduced, draft_ms_of, introduce
from .link import TcpLink
from .messages import Hello
from .patience import RetryPolicy

INTRODUCTION_S = 60.0  # the first device of its kind waits for a plan


@contextmanager
def joined(
    address: tuple[str, int],
    identity: ModelIdentity,
    drafter: CausalModel,
    *,
    tokenizer: str,
    token: str,
    patience: RetryPolicy,
) -> Iterator[tuple[RemoteTarget, Introduced]]:
    """Connect a drafter to a server; yield the target behind it and the introduction's results.

    The drafter's vocabulary may be padded differently from the target's. `tokenizer` is its `vocabulary_hash`, `token`
    the server's secret, "" for none. RequestError where the server refuses the device; ServerAwayError where it does
    not answer.
    """
    hello = Hello(drafter=identity.key, draft_ms=draft_ms_of(drafter), tokenizer=tokenizer, token=token)
    link = TcpLink(*address, greeting=lambda: hello, connect_s=patience.timeout_s)
    try:
        known = introduce(link, hello, timeout_s=max(patience.timeout_s, INTRODUCTION_S))
        told = known.welcome
        fits = drafter.vocabulary == told.vocabulary
        fitted = drafter if fits else FittedModel(drafter, told.vocabulary)
        yield RemoteTarget(fitted, link, told.drafting, most_drafted=told.most_drafted, patience=patience), known
    finally:
        link.close()

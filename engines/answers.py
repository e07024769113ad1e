"""Results of a load's requests: latencies and tokens of every answer, and their summaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, quantiles
from typing import Any

from ..errors import MeasurementError


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """The result of one request; `ttft_ms` and `e2e_ms` run from the request to the first and the last token.

    `prompt` is a number, `tokens` a count; `text`, whose digest is stored, is in no bundle, as are `events`: the tokens
    of each event, where they were asked for, and `timings`, what a server itself tells of it. `failure` says why it did
    not end; "" where it did.
    """

    prompt: int
    ttft_ms: float = 0.0
    e2e_ms: float = 0.0
    tokens: int = 0
    digest: str = ""
    text: str = field(default="", repr=False)
    events: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    timings: Mapping[str, Any] = field(default_factory=dict, repr=False)  # JSON values
    failure: str = ""

    @property
    def tpot_ms(self) -> float:
        """Milliseconds per token behind the first one."""
        return (self.e2e_ms - self.ttft_ms) / max(self.tokens - 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles of one quantity over answers, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The answers to a load, in the order of their prompts.

    Of `concurrency` (requests in flight, closed loop) and `rate` (requests per second, open loop) one is 0. `wall_s`
    runs from the first request to the last token. `client_share` is of one core, used by the client itself.
    """

    concurrency: int = 0
    rate: float = 0.0
    answers: tuple[RequestResult, ...]
    wall_s: float
    client_share: float

    @property
    def ended(self) -> tuple[RequestResult, ...]:
        """Answers that ended."""
        return tuple(one for one in self.answers if not one.failure)

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(one.tokens for one in self.ended)

    @property
    def tokens_per_s(self) -> float:
        """Throughput over the whole time."""
        return self.tokens / self.wall_s

    @property
    def tokens_per_s_per_user(self) -> float:
        """Throughput of one request, waiting included."""
        return 1000.0 * self.tokens / sum(one.e2e_ms for one in self.ended)

    @property
    def steady_tokens_per_s(self) -> float:
        """Throughput while all workers are busy (Little's law), the last answers included."""
        return self.concurrency * self.tokens_per_s_per_user

    def percentiles(self, name: str) -> Percentiles:
        """Return percentiles of "ttft_ms", "tpot_ms" or "e2e_ms"."""
        values = [float(getattr(one, name)) for one in self.ended]
        if len(values) == 1:
            values *= 2
        cuts = quantiles(values, n=100, method="inclusive")
        return Percentiles(mean=fmean(values), p50=cuts[49], p90=cuts[89], p99=cuts[98])

    def require_whole(self) -> LoadResult:
        """Return it; MeasurementError where a request did not end."""
        failed = [one for one in self.answers if one.failure]
        if failed:
            raise MeasurementError(
                f"{len(failed)} of {len(self.answers)} requests failed, the first: {failed[0].failure}; look at the "
                "server's log"
            )
        if not self.tokens:
            raise MeasurementError("no answer has a token; look at the prompts and at the server's log")
        return self

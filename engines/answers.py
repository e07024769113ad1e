"""What became of a load's requests: latencies and tokens of every answer, and what they make together."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, quantiles

from ..errors import MeasurementError


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one request.

    Attributes:
        prompt: its number.
        ttft_ms, e2e_ms: from the request to the first and to the last token.
        tokens: of the answer.
        digest: of its text.
        text: of it, which no bundle holds.
        failure: why it did not end; "" where it did.
    """

    prompt: int
    ttft_ms: float = 0.0
    e2e_ms: float = 0.0
    tokens: int = 0
    digest: str = ""
    text: str = field(default="", repr=False)
    failure: str = ""

    @property
    def tpot_ms(self) -> float:
        """Milliseconds per token behind the first one."""
        return (self.e2e_ms - self.ttft_ms) / max(self.tokens - 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Of one quantity over answers, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a load met.

    Attributes:
        concurrency: requests in flight of a closed loop; 0 for an open one.
        rate: requests per second of an open loop; 0 for a closed one.
        answers: in the order of their prompts.
        wall_s: from the first request to the last token.
        client_share: of one core, that the client itself used.
    """

    concurrency: int = 0
    rate: float = 0.0
    answers: tuple[Answer, ...]
    wall_s: float
    client_share: float

    @property
    def ended(self) -> tuple[Answer, ...]:
        """Answers that ended."""
        return tuple(one for one in self.answers if not one.failure)

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(one.tokens for one in self.ended)

    @property
    def tokens_per_s(self) -> float:
        """In all, over the whole time."""
        return self.tokens / self.wall_s

    @property
    def tokens_per_s_per_user(self) -> float:
        """What one request gets, waiting included."""
        return 1000.0 * self.tokens / sum(one.e2e_ms for one in self.ended)

    @property
    def steady_tokens_per_s(self) -> float:
        """In all, while all workers are busy (Little's law), the last answers included."""
        return self.concurrency * self.tokens_per_s_per_user

    def percentiles(self, name: str) -> Percentiles:
        """Return those of "ttft_ms", "tpot_ms" or "e2e_ms"."""
        values = [float(getattr(one, name)) for one in self.ended]
        if len(values) == 1:
            values *= 2
        cuts = quantiles(values, n=100, method="inclusive")
        return Percentiles(mean=fmean(values), p50=cuts[49], p90=cuts[89], p99=cuts[98])

    def require_whole(self) -> LoadResult:
        """Return it.

        Raises:
            MeasurementError: a request did not end.
        """
        failed = [one for one in self.answers if one.failure]
        if failed:
            raise MeasurementError(
                f"{len(failed)} of {len(self.answers)} requests failed, the first: {failed[0].failure}; look at the "
                "server's log"
            )
        if not self.tokens:
            raise MeasurementError("no answer has a token; look at the prompts and at the server's log")
        return self

"""The best way to draft at the edge, beside what the server does alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..records.recording import Recording
from ..search.contest import MOST_CENSORED
from .costs import EdgeRounds, ServerCosts, edge_rounds
from .forecast import ROUNDS, EdgeForecast, forecast
from .setting import BatchRule, DeviceDrafting, EdgeDevice, confident_chain

if TYPE_CHECKING:
    from ..strategies.confident_chain import ConfidentChainPolicy

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
CONFIDENCES = (0.0, 0.2, 0.4, 0.6, 0.8)
AHEADS = (0, 2, 4, 8, 16)
WAITS = (0.0, 0.25, 0.5, 1.0)  # of a forward that verifies one draft


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeChoice:
    """A way of drafting at the edge and what it promises."""

    draftings: tuple[DeviceDrafting, ...]  # of each device
    rule: BatchRule
    forecast: EdgeForecast


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePlan:
    """What to do with some devices."""

    best: EdgeChoice  # the fastest way that drafts at the edge
    usual: EdgeChoice  # published settings, for comparison
    server_tokens_per_s: float  # of each device, where the server decodes plainly for all and streams
    saves: float  # server time of a token there over that of the best; above 1 the server can serve more devices

    @property
    def drafts_at_the_edge(self) -> bool:
        """Whether that is faster than decoding on the server alone."""
        return self.best.forecast.slowest_tokens_per_s > self.server_tokens_per_s


class EdgeSearch:
    """Forecasts of one recording and one server; rounds that were walked once are stored."""

    def __init__(
        self,
        recording: Recording,
        costs: ServerCosts,
        *,
        rule: BatchRule | None = None,
        most_drafted: int | None = None,
        rounds_in_all: int = ROUNDS,
    ) -> None:
        """Take what is fixed: the drafter's recording along the target's texts, and the costs of the server's rounds.

        `rule` None is searched for. `most_drafted` are tokens of a draft, as many as were priced where None. A forecast
        plays `rounds_in_all`, see `forecast`.
        """
        self.recording, self.costs, self._rule, self._rounds_in_all = recording, costs, rule, rounds_in_all
        self._most = min(most_drafted or costs.most_tokens, costs.most_tokens - 1)
        self._rounds: dict[ConfidentChainPolicy, EdgeRounds] = {}

    def plan(self, devices: Sequence[EdgeDevice]) -> EdgePlan:
        """Return what to do with the devices, each of which drafts in its own way.

        In turns, every device's chain is chosen by its own speed with the others fixed, then the server's rule by the
        sum of all, until neither changes. PlanError: the forwards of so many devices were not priced.
        """
        rules, kinds = list(self._rules(len(devices))), dict.fromkeys(devices)  # alike devices draft alike
        usual = now = self._played(devices, (self._usual(),) * len(devices), rules[0])
        for _ in range(4):
            before = now
            for kind in kinds:
                now = self._best(devices, now, self._ways(devices, now, kind), _slowest_of(devices, kind))
            if len(rules) > 1:
                now = self._best(devices, now, ((now.draftings, rule) for rule in rules), _total)
            if now.rule == before.rule and (len(kinds) == 1 or now.draftings == before.draftings):
                break
        plain_ms = float(self.costs.ms[len(devices), 1])
        spent = now.forecast.busy / now.forecast.total_tokens_per_s
        return EdgePlan(
            best=now,
            usual=usual,
            server_tokens_per_s=1000.0 / plain_ms,
            saves=plain_ms / 1000.0 / len(devices) / spent,
        )

    def _ways(
        self, devices: Sequence[EdgeDevice], now: EdgeChoice, kind: EdgeDevice
    ) -> Iterable[tuple[tuple[DeviceDrafting, ...], BatchRule]]:
        for length in (each for each in LENGTHS if each <= self._most):
            for confidence in CONFIDENCES if length > 1 else CONFIDENCES[:1]:
                chain = confident_chain(length, confidence)
                if not self._is_recorded(chain):
                    continue
                for ahead in AHEADS:
                    way = DeviceDrafting(chain=chain, ahead=ahead)
                    own = zip(devices, now.draftings, strict=True)
                    yield tuple(way if device == kind else old for device, old in own), now.rule

    def _rules(self, devices: int) -> Iterable[BatchRule]:
        """Yield the given rule; else rules that differ, first the one that never waits."""
        yield self._rule or BatchRule()
        if self._rule is not None:
            return
        one_ms = float(self.costs.ms[1, 1])
        sizes = [size for size in (2, 4, 8, 16, 32, 64) if size < devices] + ([devices] if devices > 1 else [])
        for size in sizes:
            for share in WAITS[1:]:
                yield BatchRule(size=size, wait_ms=share * one_ms)

    def _best(
        self,
        devices: Sequence[EdgeDevice],
        now: EdgeChoice,
        ways: Iterable[tuple[tuple[DeviceDrafting, ...], BatchRule]],
        worth: Callable[[EdgeForecast], float],
    ) -> EdgeChoice:
        return max((now, *(self._played(devices, *way) for way in ways)), key=lambda choice: worth(choice.forecast))

    def _played(
        self, devices: Sequence[EdgeDevice], draftings: tuple[DeviceDrafting, ...], rule: BatchRule
    ) -> EdgeChoice:
        rounds = [self._rounds_of(drafting.chain) for drafting in draftings]
        found = forecast(devices, draftings, rounds, rule, self.costs, rounds_in_all=self._rounds_in_all)
        return EdgeChoice(draftings=draftings, rule=rule, forecast=found)

    def _rounds_of(self, chain: ConfidentChainPolicy) -> EdgeRounds:
        if chain not in self._rounds:
            self._rounds[chain] = edge_rounds(chain, self.recording)
        return self._rounds[chain]

    def _is_recorded(self, chain: ConfidentChainPolicy) -> bool:
        return self._rounds_of(chain).censored <= MOST_CENSORED

    def _usual(self) -> DeviceDrafting:
        default = DeviceDrafting()  # what a third party's tuning of SLED found: 4 while surer than 0.6, 8 ahead
        lengths = range(min(default.chain.length, self._most), 1, -1)
        chains = (replace(default.chain, length=length) for length in lengths)
        shortest = replace(default.chain, length=1)
        return replace(default, chain=next(filter(self._is_recorded, chains), shortest))


def _total(found: EdgeForecast) -> float:
    return found.total_tokens_per_s


def _slowest_of(devices: Sequence[EdgeDevice], kind: EdgeDevice) -> Callable[[EdgeForecast], float]:
    own = [place for place, device in enumerate(devices) if device == kind]
    return lambda found: min(found.tokens_per_s[place] for place in own)

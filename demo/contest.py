"""Measure a plan beside plain decoding, two defaults of others and transformers, on prompts it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from ..errors import PlanError
from ..planner.inputs import LOOKUP, PlanInputs
from ..planner.plans.plan import Plan, PlanCell
from ..planner.pricing.cells import Cell
from ..planner.records.recording import Text
from ..planner.search.price import price
from ..planner.strategies import REGISTRY, TreePolicy
from ..planner.strategies.base import made
from ..planner.strategies.chain import ChainPolicy
from ..planner.strategies.lookup import TRANSFORMERS_LOOKUP
from ..planner.strategies.naming import name_of
from ..planner.strategies.plain import PlainPolicy
from ..runtime.batch.sequence import Request
from ..runtime.batch.step_config import StepConfig, always, plain_setup, setup_of
from ..tuning.measuring.baseline import GenerateEntrant
from ..tuning.measuring.decoding import DecodingRun, Family, decode_timed, room_for
from ..tuning.measuring.exact import Judgement, judge
from ..tuning.measuring.race import Entrant, race
from ..tuning.recording.recipe import CHILDREN, Recipe, recipe_of
from ..tuning.recording.record import record_prompts
from ..tuning.recording.traces import trace_of
from ..tuning.request import Identities, ProfileRequest
from ..tuning.validate import entrant
from .records import CellOutcome, DemoRow

GENERATED, OTHERS = 8, 16  # requests that `transformers.generate` and the defaults decode, or twice a batch
SLOTS = 32  # sequences decoded at once where they do not influence each other
DEFAULT_CHAIN = ChainPolicy(length=4)
DEFAULTS: tuple[tuple[str, TreePolicy], ...] = (
    ("chain of 4", DEFAULT_CHAIN),
    *((("EAGLE-2 default", made("eagle2")),) if "eagle2" in REGISTRY else ()),  # 60 tokens, depth 7, top 10
)
COPIES: tuple[tuple[str, TreePolicy], ...] = (  # where no model drafts
    ("prompt lookup", TRANSFORMERS_LOOKUP),
    *((("SuffixDecoding", made("suffix-tree")),) if "suffix-tree" in REGISTRY else ()),
)
PLAIN, CHAIN, TREE, PLAN, GENERATE = "plain", "chain of 4", "EAGLE-2 default", "spectune plan", "transformers.generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One way of decoding in one cell, and what the planner promised for it; None where it cannot tell."""

    name: str
    setup: StepConfig
    predicted_tokens_per_s: float | None


def contestants(plan: Plan, cell: PlanCell, inputs: PlanInputs) -> list[Contestant]:
    """Return plain decoding, two defaults (of a draft model, else of copying) and the plan's choice, predicted."""
    known = [*cell.drafters, *(name for name, _ in plan.drafters)]
    drafter = next((name for name in known if name != LOOKUP), LOOKUP)
    defaults = COPIES if drafter == LOOKUP else DEFAULTS
    place = Cell(batch=cell.batch, context=cell.context)
    found = [Contestant(name=PLAIN, setup=plain_setup(cell), predicted_tokens_per_s=cell.plain.tokens_per_s)]
    found += [_default(name, policy, drafter, inputs, place) for name, policy in defaults]
    promise = cell.prediction.tokens_per_s
    return [*found, Contestant(name=PLAN, setup=setup_of(cell), predicted_tokens_per_s=promise)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """What a race gave, by name: tokens/s, with `transformers.generate`, and a sequence's tokens per round."""

    tokens_per_s: dict[str, float]
    tokens_per_round: dict[str, float]


def _default(name: str, policy: TreePolicy, drafter: str, inputs: PlanInputs, place: Cell) -> Contestant:
    """Return a default; one whose trees were not recorded, as on a busy machine, runs without a prediction."""
    try:
        priced = price(inputs, place, policy, drafter)
    except PlanError:
        return Contestant(name=name, setup=StepConfig(policy=policy, drafter=drafter), predicted_tokens_per_s=None)
    setup = StepConfig(policy=policy, drafter=drafter, run_tokens=priced.run_tokens)
    return Contestant(name=name, setup=setup, predicted_tokens_per_s=priced.tokens_per_s)


def measure_speeds(
    found: Sequence[Contestant],
    family: Family,
    baseline: PreTrainedModel,
    requests: Sequence[Request],
    batch: int,
    *,
    seed: int = 0,
) -> RaceResult:
    """Let all decode the requests in turns; what the plan is not judged by decodes the first of them only."""
    most = {PLAIN: len(requests), PLAN: len(requests)}
    some = max(OTHERS, 2 * batch)
    ours = [entrant(c.name, c.setup, family, requests[: most.get(c.name, some)], batch) for c in found]
    few = requests[: max(GENERATED, 2 * batch)]
    field: list[Entrant] = [*ours, GenerateEntrant(GENERATE, baseline, few, batch)]
    race(field, turns=len(requests) // max(batch, 2), seed=seed)
    return RaceResult(
        tokens_per_s={e.name: e.tokens_per_s for e in field},
        tokens_per_round={e.name: e.run.tokens_per_round for e in ours},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What fp32 decoding of one contestant gave: tokens per round, decoded and replayed, and the judge's word."""

    tokens_per_round: float
    replayed_tokens_per_round: float | None
    judgement: Judgement


class Counter:
    """Decodes contestants in fp32, and replays a recording of the very same prompts.

    Sequences of an uncoupled policy do not influence each other: one decoding at many slots tells for every batch. A
    coupled one is decoded in the batch's own slots, always full, as in its replay.
    """

    def __init__(self, family: Family, judge_model: PreTrainedModel, requests: Sequence[Request]) -> None:
        self._family, self._judge, self._requests = family, judge_model, requests
        self._runs: dict[tuple[TreePolicy, str | None, int], DecodingRun] = {}
        self._judged: dict[tuple[tuple[int, ...], ...], Judgement] = {}

    def run(self, setup: StepConfig, batch: int) -> DecodingRun:
        """Return the fp32 decoding that judges a setup at a batch size."""
        slots = self._slots(setup, batch)
        key = (setup.policy, setup.drafter, slots)
        if key not in self._runs:
            unpadded = replace(setup, run_tokens=())
            names = [setup.drafter] if setup.drafter else []
            room = room_for(self._requests, [unpadded], slots)
            decoder = self._family.decoder(always(unpadded), names=names, batch=slots, capacity=room)
            is_coupled = setup.policy.is_coupled(batch)
            self._runs[key] = decode_timed(decoder, self._requests, slots, keeps_full=is_coupled)
        return self._runs[key]

    def traced(self, inputs: PlanInputs, request: ProfileRequest) -> PlanInputs:
        """Return the inputs with recordings of the measured prompts, made where the decoded rounds began."""
        identities = Identities(target=inputs.target, drafters={d.name: d.model for d in inputs.drafters})
        texts = list(zip(self._requests, self.run(StepConfig(policy=PlainPolicy()), 1).texts, strict=True))
        drafters = []
        for drafter in inputs.drafters:
            grown = {policy: run for (policy, name, _), run in self._runs.items() if name == drafter.name}
            visited = [run.visited() for policy, run in grown.items() if is_grown(policy)]
            places = [sorted({t for run in visited for t in run[text]}) for text in range(len(texts))]
            model = self._family.drafters[drafter.name]
            prompts = record_prompts(model, texts, recipe_for(list(grown)), places)
            drafters.append(replace(drafter, trace=trace_of(request, identities, drafter.name, prompts)))
        own = () if drafters else tuple(Text(prompt=asked.prompt, continuation=text) for asked, text in texts)
        return replace(inputs, drafters=tuple(drafters), texts=own)

    def count(self, setup: StepConfig, cell: PlanCell, traced: PlanInputs) -> Count:
        """Return what a setup does in fp32 in a cell, and what the recording says it does."""
        run = self.run(setup, cell.batch)
        is_coupled = setup.policy.is_coupled(cell.batch)
        place = Cell(batch=cell.batch if is_coupled else 1, context=cell.context)
        return Count(
            tokens_per_round=run.tokens_per_round,
            replayed_tokens_per_round=replayed(traced, place, setup),
            judgement=self._judgement(run),
        )

    def _slots(self, setup: StepConfig, batch: int) -> int:
        if setup.policy.is_of_one_cell:
            return batch
        return min(SLOTS, len(self._requests))

    def _judgement(self, run: DecodingRun) -> Judgement:
        if run.texts not in self._judged:
            self._judged[run.texts] = judge(self._judge, self._requests, run.texts)
        return self._judged[run.texts]


def replayed(inputs: PlanInputs, cell: Cell, setup: StepConfig) -> float | None:
    """Return tokens per round replayed from the inputs' traces, None where they do not hold enough."""
    if isinstance(setup.policy, PlainPolicy):
        return 1.0
    try:
        return price(inputs, cell, setup.policy, setup.drafter).tokens_per_round
    except PlanError:
        return None


def recipe_for(policies: Sequence[TreePolicy]) -> Recipe:
    """Return a small recording that replays every one of the policies; chains and static trees need roots only.

    What CAST expands in a batch depends on who runs together, so all beams are recorded beside its own tree.
    """
    own = [policy for policy in policies if is_grown(policy)]
    known = recipe_of("standard").trees if any(policy.is_of_one_cell for policy in own) else ()
    every = tuple(dict.fromkeys((*known, *own)))
    return Recipe(children=max(CHILDREN, *(tree.children for tree in every), 1), trees=every)


def is_grown(policy: TreePolicy) -> bool:
    """Return whether a replay of the policy needs more of a model than what it says at the roots."""
    return policy.source == "model" and policy.fixed_tree is None and not policy.is_lossy


def rows_of_cell(
    found: Sequence[Contestant], speeds: dict[str, float], counts: dict[str, Count], batch: int
) -> list[DemoRow]:
    """Return one row per contestant and one for transformers."""
    rows = [
        DemoRow(
            batch=batch,
            name=c.name,
            policy=name_of(c.setup.policy.code, c.setup.drafter),
            drafters=() if c.setup.drafter is None else (c.setup.drafter,),
            predicted_tokens_per_s=c.predicted_tokens_per_s,
            measured_tokens_per_s=speeds[c.name],
            tokens_per_round=counts[c.name].tokens_per_round,
            near_ties=counts[c.name].judgement.near_ties,
            replayed_tokens_per_round=counts[c.name].replayed_tokens_per_round,
        )
        for c in found
    ]
    generate = DemoRow(
        batch=batch,
        name=GENERATE,
        policy=None,
        drafters=(),
        predicted_tokens_per_s=None,
        measured_tokens_per_s=speeds[GENERATE],
        tokens_per_round=None,
        near_ties=None,
        replayed_tokens_per_round=None,
    )
    return [*rows, generate]


def outcome_of_cell(cell: PlanCell, speeds: dict[str, float], tokens_per_round: float) -> CellOutcome:
    """Return how the chosen row did; its rounds accepted so many tokens of a sequence."""
    measured, promise = speeds[PLAN], cell.prediction
    return CellOutcome(
        batch=cell.batch,
        chosen=name_of(cell.policy.code, cell.drafter),
        measured_tokens_per_s=measured,
        speedup_over_plain=measured / speeds[PLAIN],
        speedup_over_generate=measured / speeds[GENERATE],
        prediction_error=abs(promise.tokens_per_s / measured - 1.0),
        interval=(promise.low, promise.high),
        is_covered=promise.low <= measured <= promise.high,
        predicted_tokens_per_round=promise.tokens_per_round,
        tokens_per_round=tokens_per_round,
    )

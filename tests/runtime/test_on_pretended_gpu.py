"""Every way of decoding on a GPU that is only pretended: the same texts as on the CPU, and rounds that never wait.

What no CPU shows is shown here without a GPU: that nothing is computed on two devices at once, that the host waits by
events alone, that it reads nothing before it has arrived and changes nothing that is on its way, and that captured
work has frozen nothing of the round it was captured in.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from spectune.errors import ModelError
from spectune.planner.records.fly_rule import FlyRule
from spectune.planner.records.pad_rule import PadRule
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.fly import FlyPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.pad import PadPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.runtime.batch import transfer
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.head import model_drafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.drafters.stack import StackDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.request_state import sequences_of
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.drafter_shapes import Kind
from spectune.runtime.models.eagle_shape import Form
from spectune.runtime.models.forward import TREE_ATTENTION, CausalModel
from spectune.runtime.models.graphed import GraphedModel
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.pivots import PivotClassifier
from spectune.runtime.models.regime import in_regime
from spectune.runtime.models.static_input import StaticInput
from spectune.runtime.models.tapped import tapped_for
from spectune.runtime.sampling import sampler as draws

from ..lossless.test_cover import STACKS
from ..lossless.test_text_drafts import POLICIES as TEXTS
from ..lossy.test_pad_decoding import NET, SHAPE
from ..pretended.cuda import pretended_gpu
from ..pretended.device import PLACE
from ..pretended.traffic import DeviceMistakeError
from ..support.ahead_runs import KINDS as RUN_AHEAD
from ..support.ahead_runs import LEAN_TREES
from ..support.decoded_runs import CAPACITY, PADDED, POLICIES, random_requests
from ..support.pairwise import covering
from ..support.synthetic import model
from ..support.tiny_blocks import KINDS, block_weights, tiny_block
from ..support.tiny_exits import exit_weights, tiny_exit
from ..support.tiny_heads import head_weights, tiny_head
from ..support.tiny_models import perturbed, tiny_llama
from ..support.tiny_recycling import tiny_recycling

pytestmark = pytest.mark.lossless

CHAIN = ChainPolicy(length=3)
COPIED = SuffixPolicy(length=5, min_match=2, occurrence="last")
LOSSY: dict[str, TreePolicy] = {
    "FLy": FlyPolicy(draft=CHAIN, rule=FlyRule(threshold=0.2, window=1)),
    "PAD": PadPolicy(draft=CHAIN, rule=PadRule(threshold=0.9, floor=0.0), classifier=model("pivots")),
}
FORMS: tuple[Form, ...] = ("eagle", "eagle3")
HEADS = (*FORMS, *KINDS, "recycling")
ON_HEADS = ("chain", "eagle2", "cast")
WAYS: dict[str, TreePolicy] = {
    "plain": PlainPolicy(),
    **POLICIES,
    **LEAN_TREES,
    **STACKS,
    **TEXTS,
    **LOSSY,
    **{f"{head}: {name}": POLICIES[name] for head in HEADS for name in ON_HEADS},
    "text, else a chain": HybridPolicy(text=COPIED, model=CHAIN),
    "trees of text, else a chain": HybridPolicy(
        text=SuffixTreePolicy(nodes=6, factor=4, offset=1, least_chance=0.05, least_score=1.5), model=CHAIN
    ),
    "seldom text, else a tree": HybridPolicy(text=replace(COPIED, min_match=9), model=LEAN_TREES["eagle2 of 5"]),
    "eagle3: text, else a chain": HybridPolicy(text=COPIED, model=CHAIN),
    "exit: resumed": ResumedPolicy(draft=CHAIN),
    "exit: chain": CHAIN,
}
RARE = {  # of one head's policies all but one: `pytest -m slow` takes them
    f"{head}: {name}"
    for place, head in enumerate(HEADS)
    for name in ON_HEADS
    if name != ON_HEADS[place % len(ON_HEADS)]
}
READERS = ("exit", *HEADS)  # of the target's hidden states
UNCAPTURED = ("exit: resumed", "PAD")  # ways beside which no target is captured
LLAMA = tiny_llama(layers=3, seed=0)
LIKE = ((0.06, 0), (0.1, 1), (0.2, 1))  # how the drafters' weights differ from the target's, and their seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    way: str
    slots: int
    sampling: str
    regime: str
    is_padded: bool

    @property
    def head(self) -> str:
        """What drafts from the target's hidden states, or the way itself."""
        return self.way.partition(":")[0]


COVERED = (
    Case(**row)
    for row in covering(
        {
            "way": tuple(WAYS),
            "slots": (1, 3),
            "sampling": ("greedy", "sampled", "mixed"),  # mixed ones have a penalty among them
            "regime": ("eager", "cuda-graph"),
            "is_padded": (False, True),
        }
    )
)
AHEAD = (  # of the host, where it need not know the tokens of a round to launch the next
    Case(way=way, slots=slots, sampling="greedy", regime="cuda-graph", is_padded=False)
    for way in (
        *(*RUN_AHEAD, "suffix", "lookup", "text, else a chain", "seldom text, else a tree"),
        *("eagle: chain", "eagle3: eagle2", "eagle3: text, else a chain"),
    )
    for slots in (1, 3)
)
CASES = [case for case in dict.fromkeys((*COVERED, *AHEAD)) if case.regime == "eager" or case.way not in UNCAPTURED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Who decodes: the target, what drafts, and who judges."""

    target: CausalModel
    drafter: Drafter
    judges: dict[str, PivotClassifier] = field(default_factory=dict)


def crew(case: Case, device: torch.device) -> Crew:
    """Return who decodes in a case, on a device; only a GPU has its work captured."""
    return beside_target(case, device) if case.head in READERS else of_models(case, device)


def beside_target(case: Case, device: torch.device) -> Crew:
    """Return a target with what drafts from its hidden states."""
    own, moved = LLAMA, on(device, tiny_llama(layers=3, seed=0))
    target = LeanModel(moved)
    made: dict[str, Callable[[], CausalModel]] = {
        "exit": lambda: tiny_exit(target, exit_weights(32), 1),
        "recycling": lambda: tiny_recycling(moved),
        **{form: partial(head_of, form, own, moved) for form in FORMS},
        **{kind: partial(block_of, kind, own, moved) for kind in KINDS},
    }
    regime = case.regime if device.type == "cuda" else "eager"
    model = running(made[case.head](), regime)
    drafter = model_drafter(model, slots=case.slots, capacity=CAPACITY)
    return Crew(target=reading_trees(tapped_for(running(target, regime), [model])), drafter=mixing(case, drafter))


def head_of(form: Form, own: LlamaForCausalLM, moved: LlamaForCausalLM) -> CausalModel:
    return tiny_head(form, moved, head_weights(form, own))


def block_of(kind: Kind, own: LlamaForCausalLM, moved: LlamaForCausalLM) -> CausalModel:
    return tiny_block(kind, moved, block_weights(kind, own))


def of_models(case: Case, device: torch.device) -> Crew:
    """Return a target and what drafts by models of its own, or from the text."""
    policy = WAYS[case.way]
    regime = case.regime if device.type == "cuda" else "eager"
    target: CausalModel = LeanModel(on(device, tiny_llama(layers=3, seed=0)))
    models = [running(LeanModel(on(device, perturbed(LLAMA, *like))), regime) for like in LIKE]
    if isinstance(policy, StackPolicy):
        stack = StackDrafter(models[: len(policy.models)], slots=case.slots, capacity=CAPACITY)
        return Crew(target=running(target, regime), drafter=stack)
    if case.way in TEXTS or case.way == "lookup":
        return Crew(target=running(target, regime), drafter=LookupDrafter())
    drafter = mixing(case, ModelDrafter(models[0], slots=case.slots, capacity=CAPACITY))
    if case.way == "PAD":
        tapped = tapped_for(target, (), also=[SHAPE.reads])
        return Crew(target=tapped, drafter=drafter, judges={"pivots": PivotClassifier(deepcopy(NET), SHAPE, device)})
    return Crew(target=running(target, regime), drafter=drafter)


def on(device: torch.device, model: LlamaForCausalLM) -> LlamaForCausalLM:
    to: Any = model.to  # Any: transformers types the self of its mixin as a protocol, in some versions
    to(device)
    return model


def running(model: CausalModel, regime: str) -> CausalModel:
    """Return a model in a regime; captured ones are given trees, of which it makes masks where no kernel reads them."""
    return reading_trees(in_regime(model, regime))


def reading_trees(model: CausalModel) -> CausalModel:
    """Let a captured model be given trees."""
    if isinstance(model, GraphedModel):
        model.attention = TREE_ATTENTION
    return model


def mixing(case: Case, drafter: ModelDrafter) -> Drafter:
    """Return a drafter that may copy from the text, too, where its policy does."""
    return HybridDrafter(drafter) if isinstance(WAYS[case.way], HybridPolicy) else drafter


@dataclass(frozen=True, slots=True)
class Done:
    """What a run did; a GPU may draft one layer more than it needs, which changes no tree."""

    texts: list[list[int]]
    rounds: list[tuple[list[int], int]]  # tokens that each sequence kept, and those that were verified


def decoded(case: Case, device: torch.device, *, prefix_caching: bool = False, spare: int = 0) -> Done:
    """Decode; on a GPU only the reading of prompts may wait unasked."""
    who = crew(replace(case, slots=case.slots + spare), device)
    setup = StepConfig(
        policy=WAYS[case.way],
        drafter=None if case.way == "plain" else "it",
        run_tokens=PADDED if case.is_padded else (),
    )
    decoder = Engine(
        who.target, {"it": who.drafter}, always(setup), slots=case.slots, spare_slots=spare, capacity=CAPACITY,
        allow_lossy=True, judges=who.judges, prefix_caching=prefix_caching,
    )  # fmt: skip
    scheduler, rounds = Scheduler(decoder), list[StepOutput]()
    states = [scheduler.add(request) for request in requests(case.sampling)]
    while True:
        waiting(device, "default")
        if not scheduler.schedule():
            of_one_size = case.regime == "cuda-graph" and setup.policy.copied_on_gpu
            told = [(one.kept, 0 if of_one_size else one.verify_tokens) for one in rounds]
            is_chain = "chain" in case.way and case.regime == "eager"  # its best token is never one that is left out
            if case.head in READERS and case.sampling == "mixed" and not is_chain:
                told = []  # of tokens that a request leaves out, and a drafter that has no other drafts, any is one
            return Done([s.emitted for s in sequences_of(states)], told)
        waiting(device, "error")
        rounds.append(decoder.step())
        assert not rounds[-1].faults, rounds[-1].faults


def requests(sampling: str) -> list[Request]:
    """Return what is asked; of mixed requests each is drawn from in a way of its own."""
    if sampling == "greedy":
        return random_requests(5, tokens=6)
    if sampling == "alike":
        return [replace(one, prompt=(*range(20), *one.prompt)) for one in random_requests(7, tokens=6)]
    if sampling == "sampled":
        return random_requests(5, tokens=6, temperature=0.8)
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 0.8, "top_k": 5},
        {"repetition_penalty": 1.3},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.0, "min_p": 0.1},
    )
    return [replace(one, **way) for one, way in zip(random_requests(5, tokens=6), ways, strict=True)]


def waiting(device: torch.device, mode: str) -> None:
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(one, marks=pytest.mark.slow if one.way in RARE or place % 3 else ())
        for place, one in enumerate(CASES)
    ],
    ids=str,
)
def test_a_gpu_emits_the_same_in_the_same_rounds_and_waits_on_purpose_alone(case: Case) -> None:
    expected = decoded(case, torch.device("cpu"))
    with pretended_gpu():
        assert decoded(case, PLACE) == expected


@pytest.mark.parametrize("slots", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("way", ["plain", "chain", "suffix", "text, else a chain", "eagle3: chain", "stack of 3"])
def test_what_prompts_begin_with_is_moved_on_the_device_and_read_by_nobody(way: str, slots: int) -> None:
    case = Case(way=way, slots=slots, sampling="alike", regime="cuda-graph", is_padded=False)
    expected = decoded(case, torch.device("cpu"))
    with pretended_gpu():
        assert decoded(case, PLACE, prefix_caching=True, spare=2) == expected


# --- controls: each of these would go unseen on a CPU


POISONED = (AssertionError, IndexError, OverflowError)  # another text, or none: no such token, no such number


def decode_spoilt(way: str, regime: str = "eager") -> None:
    """Decode, on either device, what a test has spoilt."""
    case = Case(way=way, slots=1, sampling="greedy", regime=regime, is_padded=False)
    test_a_gpu_emits_the_same_in_the_same_rounds_and_waits_on_purpose_alone(case)


def test_a_wait_in_a_round_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "fetched", lambda tensor: tensor.cpu().numpy())
    with pytest.raises(DeviceMistakeError, match="the host waits for the device"):
        decode_spoilt("suffix")


def test_reading_before_the_event_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "wait_for", lambda device: None)
    with pytest.raises((*POISONED, ModelError)):  # logits that are read too early may be no numbers
        decode_spoilt("suffix")


def test_memory_of_one_round_that_a_graph_goes_on_reading_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StaticInput, "load", lambda self, step: None)
    with pytest.raises(POISONED):
        decode_spoilt("cacheback", "cuda-graph")

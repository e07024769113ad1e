"""Block drafters say what their formulas say; every node of a tree is answered from the one forward of its round."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import cache

import pytest
import torch

from spectune.errors import ModelError
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.block import BlockDrafter, block_children
from spectune.runtime.drafters.head import model_drafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.block import Block, Levels, MedusaHeads
from spectune.runtime.models.ctc import Frames
from spectune.runtime.models.drafter_shapes import Kind
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import tapped_for

from ...support.decoded_runs import CAPACITY, POLICIES, random_requests, run
from ...support.tiny_blocks import (
    DEPTH,
    KINDS,
    block_shape_of,
    block_weights,
    chances_of_prefixes,
    collapsed,
    exact_said,
    said_along,
    tiny_block,
)
from ...support.tiny_models import tiny_llama

LLAMA = tiny_llama(layers=2, seed=0)
TARGET = LeanModel(LLAMA)
WEIGHTS = {kind: block_weights(kind, LLAMA) for kind in KINDS}
BLOCKS = {kind: tiny_block(kind, LLAMA, WEIGHTS[kind]) for kind in KINDS}
VOCABULARY = LLAMA.config.vocab_size
Place = tuple[int, tuple[int, ...]]  # row and prefix


class Listening(BlockDrafter):
    """Keeps what was said behind which texts."""

    def __init__(self, kind: Kind, slots: int) -> None:
        super().__init__(BLOCKS[kind], slots=slots, capacity=CAPACITY)
        self.heard: list[tuple[list[list[int]], torch.Tensor]] = []

    def begin(self, sequences: Many[Sequence]) -> Block:
        block = super().begin(sequences)
        if isinstance(block, Levels):
            said = block._said
        else:
            assert isinstance(block, Frames)
            said = torch.cat((block._tokens, block._blank[..., None]), -1)
        self.heard.append(([list(s.tokens) for s in sequences], said))
        return block


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slots", [1, 3])
def test_what_is_said_in_rounds_is_what_the_formulas_say(kind: Kind, slots: int) -> None:
    drafter = Listening(kind, slots)
    schedule = always(StepConfig(policy=POLICIES["eagle2"], drafter="it"))
    run(tapped_for(TARGET, [BLOCKS[kind]]), random_requests(5, tokens=10), schedule, {"it": drafter}, slots=slots)
    assert len(drafter.heard) > 5
    for texts, said in drafter.heard[::3]:
        for text, own in zip(texts, said, strict=True):
            exact = exact_said(kind, LLAMA, WEIGHTS[kind], text)
            torch.testing.assert_close(own.double(), exact.exp() if kind == "ctc" else exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_runs_one_forward_whatever_the_depth(kind: Kind) -> None:
    drafter = model_drafter(BLOCKS[kind], slots=1, capacity=CAPACITY)
    target = tapped_for(TARGET, [BLOCKS[kind]])
    schedule = always(StepConfig(policy=ChainPolicy(length=4), drafter="it"))
    decoder = Engine(target, {"it": drafter}, schedule, slots=1, capacity=CAPACITY)
    decoder.admit(random_requests(1, tokens=12)[0])
    before = drafter.forwards
    done = decoder.step()
    assert not done.faults and done.widths == (1, 1, 1, 1) and drafter.forwards == before + 1


@cache
def answered_alone() -> list[tuple[int, ...]]:
    return run(TARGET, random_requests(4, tokens=12), slots=1).outputs


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_depends_on_the_committed_text_alone(kind: Kind) -> None:
    """Deeper trees, other slots and other rounds before leave other things in caches, and the same is said."""
    said: dict[tuple[int, ...], torch.Tensor] = {}
    for slots, policy in ((1, ChainPolicy(length=1)), (3, Eagle2Policy(verify_tokens=8, depth=2, top_k=3))):
        drafter = Listening(kind, slots)
        schedule = always(StepConfig(policy=policy, drafter="it"))
        run(tapped_for(TARGET, [BLOCKS[kind]]), random_requests(4, tokens=12), schedule, {"it": drafter}, slots=slots)
        for texts, each in drafter.heard:
            for text, own in zip(texts, each, strict=True):
                torch.testing.assert_close(said.setdefault(tuple(text), own), own, rtol=1e-5, atol=1e-6)
    assert len(said) > 8


def test_medusa_s_children_are_the_same_whatever_the_path_and_nearly_alike_behind_the_last_head() -> None:
    said = torch.randn(2, DEPTH, VOCABULARY, dtype=torch.float64)
    levels, nodes = Levels(said), torch.tensor([0, 1, 1])
    assert torch.equal(levels.root(), said[:, 0])
    for depth in range(1, DEPTH):
        answer = levels.below(nodes, torch.tensor([3, 5, 7]))
        assert torch.equal(answer, said[[0, 1, 1], depth]) and torch.equal(levels.level(depth), said[:, depth])
        nodes = torch.arange(3) + 2 + 3 * (depth - 1)
    behind = levels.below(nodes, torch.tensor([3, 5, 7])).log_softmax(-1)
    assert torch.equal(behind.argsort(descending=True), torch.arange(VOCABULARY).expand(3, -1))
    assert behind.max() - behind.min() < 0.01


@pytest.mark.parametrize(
    ("path", "says"),
    [((1, 1), (1,)), ((1, 3, 1), (1, 1)), ((3, 1, 3), (1,)), ((3, 3), ()), ((0, 0, 3, 0, 2), (0, 0, 2))],
)
def test_frames_collapse_before_blanks_are_left_out(path: tuple[int, ...], says: tuple[int, ...]) -> None:
    """The oracle is checked first; then frames that are sure of one path must say the same."""
    assert collapsed(path, blank=3) == says
    said = torch.full((1, len(path), 4), -40.0, dtype=torch.float64)
    said[0, range(len(path)), list(path)] = 0.0
    frames, answer, node = Frames(said), None, 0
    answer = frames.root()[0]
    for place, token in enumerate(says):
        assert int(answer.argmax()) == token and answer.max() > -1e-6
        answer = frames.below(torch.tensor([node]), torch.tensor([token]))[0]
        node = 1 + place
    assert int(answer.argmax()) == 3  # nothing more is said


def test_frames_give_every_prefix_its_chance() -> None:
    noise = torch.Generator().manual_seed(1)
    said = (2.0 * torch.randn(2, 5, 4, generator=noise, dtype=torch.float64)).log_softmax(-1)
    frames = Frames(said)
    answers: dict[Place, torch.Tensor] = {(row, ()): answer for row, answer in enumerate(frames.root())}
    ids: dict[Place, int] = {(0, ()): 0, (1, ()): 1}
    for length in range(3):
        parents = [(row, prefix) for row, prefix in ids if len(prefix) == length]
        new = [(parent, token) for parent in parents for token in range(3)]
        asked = torch.tensor([[ids[parent], token] for parent, token in new])
        found = frames.below(asked[:, 0], asked[:, 1])
        for ((row, prefix), token), answer in zip(new, found, strict=True):
            ids[row, (*prefix, token)] = len(ids)
            answers[row, (*prefix, token)] = answer
    for row in (0, 1):
        chance = chances_of_prefixes(said[row])
        for prefix in (prefix for known, prefix in answers if known == row):
            for token in range(3):
                exact = chance.get((*prefix, token), 0.0) / chance[prefix]
                assert float(answers[row, prefix][token].exp()) == pytest.approx(exact, rel=1e-9, abs=1e-12)
            assert float(answers[row, prefix].exp().sum()) == pytest.approx(1.0)


def test_a_blank_is_no_child() -> None:
    scores = torch.tensor([[[0.0, 1.0, 9.0]]])
    best = block_children(scores, 5, vocabulary=2)
    assert best.tokens.tolist() == [[[1, 0]]] and float(best.log_probs.exp().sum()) < 0.01


def test_frames_see_their_fellows_and_no_later_text() -> None:
    """Attention between frames goes both ways; what stands behind the newest token changes nothing."""
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    whole = said_behind(WEIGHTS["ctc"], text, place=4)
    torch.testing.assert_close(said_behind(WEIGHTS["ctc"], [*text[:5], 7, 7, 7], place=4), whole)
    changed = dict(WEIGHTS["ctc"])
    changed["queries.weight"] = changed["queries.weight"].clone()
    changed["queries.weight"][-1] += 1.0
    assert (said_behind(changed, text, place=4)[0] - whole[0]).abs().max() > 1e-3


def said_behind(weights: dict[str, torch.Tensor], text: list[int], place: int) -> torch.Tensor:
    """Return what is said behind text[: place + 1] where the whole text is read at once."""
    return said_along(tiny_block("ctc", LLAMA, weights), text)[place]


@pytest.mark.parametrize("kind", KINDS)
def test_a_penalty_is_felt_along_each_path(kind: Kind) -> None:
    """Levels are answered path by path where a request penalises what it has said."""
    asked = [
        Request(prompt=(1, 2, 3), max_new_tokens=14, repetition_penalty=1.8, temperature=0.7, seed=3),
        Request(prompt=(4, 2), max_new_tokens=14),
    ]
    schedule = always(StepConfig(policy=POLICIES["eagle2"], drafter="it"))
    drafters = {"it": BlockDrafter(BLOCKS[kind], slots=2, capacity=CAPACITY)}
    drafted = run(tapped_for(TARGET, [BLOCKS[kind]]), asked, schedule, drafters, slots=2)
    assert drafted.outputs == run(TARGET, asked, slots=1).outputs


def test_heads_of_another_size_are_refused() -> None:
    with pytest.raises(ModelError, match=r"heads\.weight is"):
        MedusaHeads(
            WEIGHTS["medusa"], block_shape_of("medusa", LLAMA), LeanModel(tiny_llama(layers=2, seed=0, hidden=64))
        )

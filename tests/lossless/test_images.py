"""Targets that see: image prefixes change no promise; an exit drafts behind them on the shared cache."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spectune.errors import RequestError
from spectune.planner.records.draft import DraftBatch
from spectune.planner.records.image_ids import IMAGE_IDS
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.head import ExitDrafter, HeadDrafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.drafter import BlindModel
from spectune.runtime.models.eagle import EagleHead
from spectune.runtime.models.eagle_shape import Form, HeadShape
from spectune.runtime.models.image_cache import ImageCache
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import tapped_for

from ..support.decoded_runs import CAPACITY, POLICIES, Run, in_slots, run
from ..support.tiny_exits import exit_weights, tiny_exit
from ..support.tiny_heads import READS, head_weights, layer_config
from ..support.tiny_llava import PLACEHOLDER, random_image, said_by_transformers, seeing_requests, tiny_llava
from ..support.tiny_models import tiny_llama

pytestmark = pytest.mark.lossless

LLAVA = tiny_llava()
TARGET = LeanModel(LLAVA)
EXIT = tiny_exit(TARGET, exit_weights(32), 2)
REQUESTS = seeing_requests(9, tokens=12)
TREES = [name for name in POLICIES if name != "lookup"]


class Holder:
    """Needs images as long as it lives."""


HELD = Holder()


def gallery(model: LeanModel = TARGET) -> ImageCache:
    found = model.gallery
    assert found is not None
    return found


def shown(requests: Many[Request], model: LeanModel = TARGET) -> list[Request]:
    return [gallery(model).shown(request, HELD) for request in requests]


@cache
def theirs() -> list[tuple[int, ...]]:
    return [said_by_transformers(LLAVA, request) for request in REQUESTS]


def drafted(policy: TreePolicy, drafter: Drafter, requests: Many[Request] = REQUESTS) -> Run:
    return run(TARGET, shown(requests), always(StepConfig(policy=policy, drafter="it")), {"it": drafter})


def exit_drafter(on_device: bool | None = None) -> ExitDrafter:
    return ExitDrafter(EXIT, slots=3, capacity=CAPACITY, on_device=on_device)


def test_plain_decoding_says_what_transformers_says_with_and_without_images() -> None:
    """T1 with image prefixes, in one ragged batch of 3 slots that sequences join and leave."""
    assert run(TARGET, shown(REQUESTS)).outputs == theirs()


def test_in_float32_too() -> None:
    model = tiny_llava(seed=3).float()
    requests = seeing_requests(6, tokens=10)
    lean = LeanModel(model)
    found = run(lean, shown(requests, lean)).outputs
    assert found == [said_by_transformers(model, request) for request in requests]


@pytest.mark.thinned
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("kind", TREES)
def test_trees_on_an_exit_change_no_output(kind: str, on_device: bool) -> None:
    found = drafted(POLICIES[kind], exit_drafter(on_device))
    assert found.outputs == theirs()
    assert sum(sum(done.kept) for done in found.rounds) == sum(len(text) - 1 for text in found.outputs)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("length", [1, 4])
def test_verifying_from_an_exit_changes_no_output(length: int, on_device: bool) -> None:
    """The same code path as a text target's."""
    found = drafted(ResumedPolicy(draft=ChainPolicy(length=length)), exit_drafter(on_device))
    assert found.outputs == theirs() and any(kept > 1 for done in found.rounds for kept in done.kept)


def test_sampled_trees_on_an_exit_change_no_output() -> None:
    requests = seeing_requests(6, tokens=10, temperature=0.8, top_k=9)
    plain = run(TARGET, shown(requests), slots=1).outputs
    assert drafted(POLICIES["eagle2"], exit_drafter(), requests).outputs == plain


def test_another_image_gives_another_text() -> None:
    """The control: what is seen matters."""
    seeing = [request for request in REQUESTS if request.images]
    others = [replace(r, images=tuple(random_image(90 + n) for n, _ in enumerate(r.images))) for r in seeing]
    texts, changed = (run(TARGET, shown(requests)).outputs for requests in (seeing, others))
    assert all(one != other for one, other in zip(texts, changed, strict=True))


def test_rows_of_another_image_would_change_outputs() -> None:
    """The control of the table: it is what is read."""
    own = LeanModel(LLAVA)
    requests = shown(REQUESTS, own)
    with torch.no_grad():
        own.anatomy.embedding[own.vocabulary :] = own.anatomy.embedding[own.vocabulary :].roll(1, dims=0)
    found = run(own, requests).outputs
    pairs = list(zip(REQUESTS, found, theirs(), strict=True))
    assert all((one == other) == (not request.images) for request, one, other in pairs)


def test_after_every_round_the_shared_cache_is_a_fresh_prefill() -> None:
    """T5, image prefixes included."""
    requests = shown(REQUESTS)
    seen: list[tuple[int, torch.Tensor]] = []

    def watch(decoder: Engine) -> None:
        for slot, sequence in in_slots(decoder):
            seen.append((sequence.index, decoder._cache.states[:, slot, : sequence.context].clone()))

    schedule = always(StepConfig(policy=POLICIES["eagle2"], drafter="it"))
    done = run(TARGET, requests, schedule, {"it": exit_drafter()}, watch=watch)
    texts = [(*request.prompt, *output) for request, output in zip(requests, done.outputs, strict=True)]
    worst = max(float((states - prefill(texts[index][: states.shape[1]])).abs().max()) for index, states in seen)
    assert len(seen) > 20 and worst < 1e-9


def prefill(text: tuple[int, ...]) -> torch.Tensor:
    """Return (layers, tokens, width): keys and values as transformers makes them of vectors taken from the table."""
    table = torch.tensor([token if token < IMAGE_IDS else token - IMAGE_IDS + TARGET.vocabulary for token in text])
    with torch.no_grad():
        language: torch.nn.Module = LLAVA.model.language_model
        kept = language(inputs_embeds=TARGET.anatomy.embedding[table][None], use_cache=True).past_key_values
    pairs = [torch.cat((layer.keys[0], layer.values[0]), dim=0) for layer in kept.layers]
    return torch.stack([pair.transpose(0, 1).flatten(1) for pair in pairs])


def test_a_long_prompt_is_read_in_pieces_that_may_cut_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectune.runtime.engine.prefill.PREFILL_TOKENS", 3)
    assert run(TARGET, shown(REQUESTS)).outputs == theirs()


class Listening(LookupDrafter):
    """Remembers what it drafted."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: set[int] = set()

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        draft = super().draft(sequences, policy)
        for row, size in enumerate(draft.sizes):
            self.drawn |= set(draft.tokens[row, 1:size].tolist())
        return draft


@pytest.mark.parametrize("policy", [LookupPolicy(length=9), SuffixPolicy(length=9, min_match=1)], ids=str)
def test_texts_never_draft_parts_of_images(policy: TreePolicy) -> None:
    """Prompts that repeat what stands before their images: a copy would run into them."""
    requests = []
    for request in seeing_requests(6, tokens=12):
        if request.images:
            first = next(place for place, token in enumerate(request.prompt) if token >= IMAGE_IDS)
            head = request.prompt[:first] or (3,)
            requests.append(replace(request, prompt=(*head, *request.prompt[first:], *head)))
    drafter = Listening()
    found = drafted(policy, drafter, requests)
    assert found.outputs == run(TARGET, shown(requests)).outputs
    assert drafter.drawn and max(drafter.drawn) < TARGET.vocabulary
    assert all(not done.faults for done in found.rounds)


def test_a_hybrid_on_an_exit_changes_no_output() -> None:
    policy = HybridPolicy(text=SuffixPolicy(length=4, min_match=1), model=ChainPolicy(length=3))
    found = drafted(policy, HybridDrafter(exit_drafter()))
    assert found.outputs == theirs()


def test_repetition_penalties_pass_over_images() -> None:
    """Penalised text behind an image is that of plain decoding, and no id of an image is a token to penalise."""
    requests = seeing_requests(6, tokens=12, repetition_penalty=1.4)
    plain = run(TARGET, shown(requests), slots=1).outputs
    assert drafted(POLICIES["eagle2"], exit_drafter(), requests).outputs == plain
    seen = [r for r in requests if r.images]
    silent = [replace(r, repetition_penalty=1.0) for r in seen]
    assert run(TARGET, shown(seen)).outputs != run(TARGET, shown(silent)).outputs


def test_a_drafter_of_text_alone_reads_the_placeholder() -> None:
    drafter = BlindModel(LeanModel(tiny_llama(layers=1, seed=1)), PLACEHOLDER)
    model = ModelDrafter(drafter, slots=3, capacity=CAPACITY)
    found = drafted(ChainPolicy(length=3), model)
    assert found.outputs == theirs() and all(done.widths for done in found.rounds)


def test_images_that_were_not_shown_are_refused() -> None:
    decoder = Engine(TARGET, {}, always(PLAIN), slots=1, capacity=CAPACITY)
    with pytest.raises(RequestError, match="not shown"):
        decoder.admit(REQUESTS[0])


@pytest.mark.parametrize("form", ["eagle", "eagle3"])
def test_a_head_with_a_table_of_its_own_reads_the_placeholder_for_an_image(form: Form) -> None:
    text = LLAVA.config.get_text_config()
    assert isinstance(text, LlamaConfig)
    like = LlamaForCausalLM(text).double()
    own = torch.randn(like.config.vocab_size, like.config.hidden_size, dtype=torch.float64)
    weights = head_weights(form, like) | {"embed_tokens.weight": own}
    head = EagleHead(weights, HeadShape(form=form, config=layer_config(like), reads=READS[form]), TARGET)
    drafter = HeadDrafter(head, slots=3, capacity=CAPACITY)
    target, schedule = tapped_for(TARGET, [head]), always(StepConfig(policy=POLICIES["eagle2"], drafter="it"))
    done = run(target, shown(REQUESTS), schedule, {"it": drafter})
    assert done.outputs == theirs()
    assert not any(one.faults for one in done.rounds)

"""Exits of a target: they say what the formula says at every node, and share the target's weights and its cache."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.errors import ModelError
from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies import TreePolicy
from spectune.profiler.records.model import ModelIdentity
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.head import ExitDrafter, model_drafter
from spectune.runtime.drafters.stack import named_stack
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.drafter import load_exit, require_drafter_of, role_of
from spectune.runtime.models.drafter_shapes import ExitShape, exit_shape, is_exit
from spectune.runtime.models.exit import DOWN, UP
from spectune.runtime.models.forward import ForwardInput, LeftStates
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import tapped_for
from spectune.runtime.shapes import runner_of
from spectune.training.exit import save_exit

from ...support.decoded_runs import CAPACITY, POLICIES, Run, random_requests, run
from ...support.tiny_exits import WIDTH, exact_logits, exit_weights, tiny_exit
from ...support.tiny_heads import head_weights, tiny_head
from ...support.tiny_models import FAMILIES, tiny_llama, tiny_model, tiny_neox

LLAMA = tiny_llama(layers=4, seed=0)
TARGET = LeanModel(LLAMA)
WEIGHTS = exit_weights(32)
EXIT = tiny_exit(TARGET, WEIGHTS, 2)
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]


def step_of(text: Many[int], start: int = 0) -> ForwardInput:
    visible = np.tri(len(text), dtype=np.bool_)[None]
    return lay_out(
        np.array([text]), np.arange(len(text)), [start], visible, dtype=TARGET.dtype, device=torch.device("cpu")
    )


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_an_exit_says_what_the_formula_makes_of_transformers_hidden_state(layers: int) -> None:
    model = tiny_exit(TARGET, WEIGHTS, layers)
    found = model.forward(step_of(TEXT), model.new_cache(1, 8))[0]
    torch.testing.assert_close(found, exact_logits(LLAMA, WEIGHTS, TEXT, layers))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exit_of_every_family_says_what_the_formula_says(family: str) -> None:
    source = tiny_model(family)
    model = tiny_exit(LeanModel(source), WEIGHTS, 1)
    found = model.forward(step_of(TEXT), model.new_cache(1, 8))[0]
    torch.testing.assert_close(found, exact_logits(source, WEIGHTS, TEXT, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forward_that_goes_on_from_states_is_the_whole_forward(family: str) -> None:
    """The first layer's states and cache from the exit; logits and the other layers' cache from there."""
    target, step = LeanModel(tiny_model(family)), step_of(TEXT)
    exit_, whole, resumed = tiny_exit(target, WEIGHTS, 1), target.new_cache(1, 8), target.new_cache(1, 8)
    left = torch.zeros(1, len(TEXT) + 2, target.hidden, dtype=target.dtype)
    exit_.leave(step, resumed.first(1), left[0, : len(TEXT)])
    states = LeftStates(owner=target, layers=1, states=left)
    assert target.can_resume(states) and not target.can_resume(replace(states, layers=len(whole.states)))
    assert not target.can_resume(replace(states, owner=LeanModel(tiny_model(family))))
    logits = target.resume(step, resumed, states)
    torch.testing.assert_close(logits, target.forward(step, whole))
    torch.testing.assert_close(resumed.states, whole.states)
    assert not torch.allclose(target.resume(step, resumed, replace(states, states=left + 1)), logits)


def test_states_left_while_drafting_are_those_of_a_whole_forward() -> None:
    left = torch.zeros(len(TEXT), 32, dtype=TARGET.dtype)
    own = EXIT.forward_leaving(step_of(TEXT), EXIT.new_cache(1, 8), left)
    torch.testing.assert_close(left[None], TARGET.features(step_of(TEXT), TARGET.new_cache(1, 8), (2,)))
    torch.testing.assert_close(own, EXIT.forward(step_of(TEXT), EXIT.new_cache(1, 8)))


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_reading_in_pieces_is_reading_at_once(cut: int) -> None:
    cache = EXIT.new_cache(1, 8)
    pieces = [EXIT.forward(step_of(TEXT[:cut]), cache), EXIT.forward(step_of(TEXT[cut:], cut), cache)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), EXIT.forward(step_of(TEXT), EXIT.new_cache(1, 8)))


def test_all_weights_but_the_network_are_the_targets_own_memory() -> None:
    own, target = EXIT.anatomy, TARGET.anatomy
    assert own.embedding.data_ptr() == target.embedding.data_ptr()
    assert own.head is target.head and own.final_norm is target.final_norm
    assert all(mine is theirs for mine, theirs in zip(own.layers, target.layers, strict=False)) and EXIT.exit_layer == 2


class Watching(ExitDrafter):
    """Remembers what it drew behind which text."""

    def __init__(self, *, slots: int = 3, on_device: bool | None = None) -> None:
        super().__init__(EXIT, slots=slots, capacity=CAPACITY, on_device=on_device)
        self.drawn: list[tuple[list[int], DraftBatch, int]] = []

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        draft = super().draft(sequences, policy)
        self.drawn += [(list(s.tokens), draft, row) for row, s in enumerate(sequences)]
        return draft


def decoded(kind: str, *, on_device: bool | None = None) -> Watching:
    drafter = Watching(on_device=on_device)
    run(TARGET, random_requests(5, tokens=10), always(StepConfig(policy=POLICIES[kind], drafter="it")), {"it": drafter})
    return drafter


@pytest.mark.thinned
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("kind", ["chain", "eagle2", "talon", "cast", "opt-tree", "static"])
def test_every_node_of_every_tree_is_what_the_formula_ranks_so(kind: str, on_device: bool) -> None:
    """T6, on the target's cache: a node's siblings are the best behind its path, read as a plain text."""
    for text, draft, row in decoded(kind, on_device=on_device).drawn[::17]:
        paths: list[list[int]] = [[]]
        for node in range(1, int(draft.sizes[row])):
            paths.append([*paths[draft.parents[row, node]], int(draft.tokens[row, node])])
        for path in paths[1:]:
            said = exact_logits(LLAMA, WEIGHTS, [*text, *path[:-1]], 2)[-1]
            siblings = {other[-1] for other in paths[1:] if other[:-1] == path[:-1]}
            assert siblings == set(said.topk(len(siblings)).indices.tolist())


def test_a_proposal_is_a_function_of_the_committed_text_alone() -> None:
    for text, draft, row in decoded("eagle2").drawn[::11]:
        fresh = ExitDrafter(EXIT, slots=1, capacity=CAPACITY)
        decoder = Engine(TARGET, {"it": fresh}, always(PLAIN), slots=1, capacity=CAPACITY)
        again = fresh.draft([decoder.admit(Request(prompt=tuple(text[:-1]), max_new_tokens=9))], POLICIES["eagle2"])
        size = int(draft.sizes[row])
        assert again.tokens[0].tolist() == draft.tokens[row, :size].tolist()
        assert again.parents[0].tolist() == draft.parents[row, :size].tolist()


def test_an_exit_reads_one_token_a_round_whoever_drafted_before() -> None:
    def alternating(batch: int, context: int) -> StepConfig:
        drafted = StepConfig(policy=POLICIES["chain"], drafter="it")
        return drafted if context // 4 % 2 else PLAIN

    drafter = Watching()
    found = run(TARGET, random_requests(5, tokens=20), alternating, {"it": drafter})
    ran = [done for done in found.rounds if done.widths]
    assert ran and {(done.uncached, done.widths[0]) for done in ran} == {(1, 1)}
    assert drafter.forwards == sum(len(done.widths) for done in ran)
    assert found.outputs == run(TARGET, random_requests(5, tokens=20)).outputs


def test_an_exit_holds_no_cache_of_its_own() -> None:
    drafter = ExitDrafter(EXIT, slots=3, capacity=CAPACITY)
    assert drafter._cache.states.numel() == 0
    decoder = Engine(TARGET, {"it": drafter}, always(PLAIN), slots=3, capacity=CAPACITY)
    assert drafter._cache.states.data_ptr() == decoder._cache.states.data_ptr()
    assert drafter._cache.layers == 2 and len(drafter._cache.states) == 2


def test_an_exit_beside_a_head_drafts_on_the_tapped_cache() -> None:
    head = tiny_head("eagle3", LLAMA, head_weights("eagle3", LLAMA))
    drafters = {"it": ExitDrafter(EXIT, slots=3, capacity=CAPACITY)}
    schedule, requests = always(StepConfig(policy=POLICIES["eagle2"], drafter="it")), random_requests(5, tokens=10)
    both = run(tapped_for(TARGET, [head, EXIT]), requests, schedule, drafters)
    assert tapped_for(TARGET, [EXIT]) is TARGET
    assert [done.kept for done in both.rounds] == [done.kept for done in run_alone(requests).rounds]


def run_alone(requests: list[Request]) -> Run:
    drafters = {"it": ExitDrafter(EXIT, slots=3, capacity=CAPACITY)}
    return run(TARGET, requests, always(StepConfig(policy=POLICIES["eagle2"], drafter="it")), drafters)


def test_a_view_of_the_first_layers_is_the_cache_itself() -> None:
    cache = TARGET.new_cache(2, 8)
    cache.first(2).states[1, 0, 3] = 7.0
    assert (cache.states[1, 0, 3] == 7.0).all() and cache.layers == 4 and cache.states[2:].abs().sum() == 0


def test_an_exit_that_was_not_attached_is_refused() -> None:
    drafter = ExitDrafter(EXIT, slots=1, capacity=9)
    with pytest.raises(ModelError, match="let the decoder attach it"):
        drafter.draft([Sequence(Request(prompt=(1, 2), max_new_tokens=3), 0)], POLICIES["chain"])


@pytest.mark.parametrize("layers", [1, 2])
def test_the_cache_of_a_shorter_target_is_refused(layers: int) -> None:
    drafter = ExitDrafter(EXIT, slots=1, capacity=9)
    with pytest.raises(ModelError, match=f"got one of {layers} layers"):
        drafter.attach(LeanModel(tiny_llama(layers=layers, seed=0)).new_cache(1, 9))


def test_the_cache_of_a_wider_target_is_refused() -> None:
    other: KeyValueCache = LeanModel(tiny_llama(layers=4, seed=0, hidden=64)).new_cache(1, 9)
    with pytest.raises(ModelError, match="64"):
        ExitDrafter(EXIT, slots=1, capacity=9).attach(other)


@pytest.mark.parametrize("layers", [4, 9])
def test_an_exit_behind_the_last_layer_is_refused(layers: int) -> None:
    with pytest.raises(ModelError, match=f"after layer {layers} and this target has 4"):
        tiny_exit(TARGET, WEIGHTS, layers)


@pytest.mark.parametrize(("name", "said"), [(UP, f"lacks the tensor {UP}"), (DOWN, f"{DOWN} is 32 x 5")])
def test_a_network_that_does_not_fit_is_refused_with_its_tensor(name: str, said: str) -> None:
    weights: dict[str, Tensor] = dict(WEIGHTS)
    weights.pop(name)
    if name == DOWN:
        weights[name] = torch.zeros(32, 5)
    with pytest.raises(ModelError, match=said):
        tiny_exit(TARGET, weights, 2)


def saved(folder: Path) -> Path:
    folder.mkdir()
    save_exit(folder, WEIGHTS, ExitShape(layers=2, width=WIDTH, target="a" * 64))
    return folder


def test_a_folder_says_whose_it_is_and_loads_beside_its_target(tmp_path: Path) -> None:
    folder = saved(tmp_path / "exit")
    assert is_exit(folder) and not is_exit(tmp_path)
    assert exit_shape(folder) == ExitShape(layers=2, width=WIDTH, target="a" * 64)
    loaded = load_exit(folder, TARGET)
    assert loaded.exit_layer == 2 and role_of(loaded) == "self"
    assert type(model_drafter(loaded, slots=1, capacity=9)) is ExitDrafter


def test_the_exit_of_another_target_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    folder = saved(tmp_path / "exit")
    mine = ModelIdentity(
        name="mine", weights_hash="b" * 64, parameters=1, config_hash="", tokenizer_hash="", location=str(tmp_path)
    )
    with pytest.raises(ModelError, match=r"aaaaaaaaaaaa, and mine has bbbbbbbbbbbb.*--exit-layer 2"):
        require_drafter_of(folder, mine)


@pytest.mark.parametrize("said", ['{"kind": "exit"}', '{"kind": "exit", "layers": 0, "width": 3, "target": ""}', "3"])
def test_a_folder_that_says_what_cannot_be_is_refused(tmp_path: Path, said: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"spectune": {said}}}')
    with pytest.raises(ModelError, match="exit drafter"):
        exit_shape(tmp_path)


def test_an_exit_of_a_target_without_the_lean_forward_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="only the lean forward"):
        load_exit(saved(tmp_path / "exit"), GenericModel(tiny_neox(layers=1, seed=0)))


def test_an_exit_is_in_no_stack() -> None:
    with pytest.raises(ModelError, match="it is in no stack"):
        named_stack("it+lookup", {"it": EXIT}, slots=1, capacity=9)


def test_an_exit_s_forwards_are_timed_in_a_role_of_their_own() -> None:
    runner = runner_of(EXIT, "self", identity="x", slots=1, capacity=40)
    runner.prepare(1, 8, 3)()
    assert runner.role == "self"

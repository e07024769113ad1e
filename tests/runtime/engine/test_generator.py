"""The generator over a plan: its caches hold whatever a cell of the plan may draft."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from spectune.errors import DeviceError, RequestError
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.profiler.prompts import Message
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.engine.generator import Generator
from spectune.runtime.engine.make_engine import EngineMaker, ReusableEngine
from spectune.runtime.engine.settings import Completion, GenerationOptions, GenerationSettings
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.forward import CausalModel, ForwardInput
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.plan_choice import Choice
from spectune.runtime.watch.watch import Watch

from ...support.plans import plan_of
from ...support.repeated import Repeating, graphed
from ...support.synthetic import model
from ...support.tiny_family import byte_tokenizer
from ...support.tiny_models import perturbed, tiny_llama

TOKENIZER: PreTrainedTokenizerFast = byte_tokenizer("to be or not to be")
TARGET = tiny_llama(layers=1, seed=0, vocabulary=len(TOKENIZER))
PROMPTS = ["to be", "or", "not to be or"]
WIDE: list[TreePolicy] = [
    ChainPolicy(length=4),
    TalonPolicy(nodes=60, gate=0.05, top_k=10, children=49),
    OptTreePolicy(nodes=60, least_gain=-1.0, max_depth=9, children=60),  # drafts 480 nodes, verifies 61
]


def generated(policy: TreePolicy | None) -> list[tuple[int, ...]]:
    plan = plan_of([(1, 10), (3, 10)])
    schedule, choice = always(PLAIN), Choice(plan=None, source="none", reason="a test")
    if policy is not None:
        run_tokens = tuple(range(policy.max_verify_tokens + 1))
        cells = tuple(replace(cell, policy=policy, drafter="small", run_tokens=run_tokens) for cell in plan.cells)
        schedule = always(StepConfig(policy=policy, drafter="small"))
        choice = Choice(
            plan=replace(plan, cells=cells, drafters=(("small", model("small")),)), source="file", reason="a test"
        )
    drafters = {"small": LeanModel(perturbed(TARGET, 0.02))}
    generator = Generator(LeanModel(TARGET), TOKENIZER, drafters, schedule, choice)
    return [done.tokens for done in generator.generate_batch(PROMPTS, max_new_tokens=12)]


LONG = "to be or not to be " * 3


def answer(generator: Generator, kind: str, prompt: str) -> Completion:
    """Return an answer of nine tokens, asked for in one way or another."""
    if kind == "generate":
        return generator.generate(prompt, max_new_tokens=9)
    stream = generator.stream(prompt, max_new_tokens=9)
    while True:
        try:
            next(stream)
        except StopIteration as end:
            done: Completion = end.value
            return done


@pytest.mark.parametrize("kind", ["generate", "stream"])
def test_a_prompt_that_goes_on_with_that_of_the_call_before_is_read_from_there(kind: str) -> None:
    generator, tokens, prompt, cached = plain_generator(), [], LONG, []
    for _ in range(3):
        done = answer(generator, kind, prompt)
        assert done.tokens == plain_generator().generate(prompt, max_new_tokens=9).tokens
        tokens.append(len(TOKENIZER(prompt).input_ids))
        cached.append(done.cached_tokens)
        prompt += "or not to be "
    assert cached == [0, *(count - 1 for count in tokens[:2])]  # its last token is no longer a space


def test_a_session_that_is_to_read_every_prompt_does() -> None:
    session = plain_generator().session(slots=2, longest=200, prefix_caching=False)
    for _ in range(2):
        session.submit(LONG, max_new_tokens=3)
    assert [event.completion.cached_tokens for event in session.events() if event.completion is not None] == [0, 0]


@pytest.mark.parametrize("policy", WIDE, ids=lambda policy: policy.code)
def test_every_policy_of_a_plan_finds_room_and_changes_no_text(policy: TreePolicy) -> None:
    assert generated(policy) == generated(None)


def plain_generator() -> Generator:
    return Generator(LeanModel(TARGET), TOKENIZER, {}, always(PLAIN), Choice(plan=None, source="none", reason="a test"))


def test_a_chat_is_the_continuation_of_what_the_template_writes() -> None:
    generator = Generator(
        LeanModel(TARGET), byte_tokenizer("to be or not to be"), {}, always(PLAIN), plain_generator().choice
    )
    generator.tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}not"
    asked = {"role": "user", "content": [{"type": "text", "text": "to be"}]}
    turns: list[Message | Mapping[str, object]] = [Message(role="system", content="or"), asked]
    own = generator.generate("system: or\nuser: to be\nnot", max_new_tokens=9)
    answered = generator.chat(turns, max_new_tokens=9)
    assert (answered.tokens, answered.text) == (own.tokens, own.text)
    pieces = generator.stream_chat(turns, GenerationSettings(max_new_tokens=9))
    assert "".join(pieces) == own.text


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ("to be", "chat takes turns, got one"),
        ({"role": "user", "content": "to be"}, "chat takes turns, got one"),
        ([{"role": "user"}], "the content of a message must be text"),
        ([{"role": "user", "content": "\ud800"}], "half a character"),
        ([{"role": "user", "content": "to be"}], "has no chat template"),
    ],
)
def test_what_is_no_conversation_is_refused(turns: Any, words: str) -> None:
    generator = plain_generator()
    generator.tokenizer = byte_tokenizer("to be or not to be")
    if "template" not in words:
        generator.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(RequestError, match=words):
        generator.chat(turns)


def test_settings_for_all_give_prompt_i_the_seed_plus_i() -> None:
    settings = GenerationSettings(max_new_tokens=8, temperature=1.0, seed=5)
    together = plain_generator().generate_batch(PROMPTS, settings)
    alone = [plain_generator().generate(p, replace(settings, seed=5 + i)) for i, p in enumerate(PROMPTS)]
    assert together == alone and len({done.tokens for done in together}) == 3


def test_each_prompt_may_have_settings_of_its_own() -> None:
    settings = [GenerationSettings(max_new_tokens=3 + place, temperature=place / 2, seed=9) for place in range(3)]
    together = plain_generator().generate_batch(PROMPTS, settings)
    assert together == [plain_generator().generate(*pair) for pair in zip(PROMPTS, settings, strict=True)]
    assert [len(done.tokens) for done in together] == [3, 4, 5]


def test_keywords_go_before_settings() -> None:
    done = plain_generator().generate("or", GenerationSettings(max_new_tokens=9), max_new_tokens=2)
    assert (len(done.tokens), done.finish_reason) == (2, "length")


def test_keywords_are_the_fields_of_the_settings() -> None:
    assert set(GenerationOptions.__annotations__) == {field.name for field in fields(GenerationSettings)}


def test_no_prompts_are_no_completions() -> None:
    assert plain_generator().generate_batch([]) == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"prompts": [""]}, "the prompt is empty"),
        ({"prompts": ["or"], "max_new_tokens": 512}, r"need 51\d positions and the model has 512"),
        ({"prompts": ["or"], "max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1"),
        ({"prompts": ["or"], "slots": 0}, "slots must be at least 1"),
        ({"prompts": ["or"], "top_p": 2.0}, "top_p must be in"),
        ({"prompts": ["or"], "stop": "or"}, r"got 'or'; write \['or'\]"),
        ({"prompts": ["or"], "stop": [""]}, "a stop string is empty"),
        ({"prompts": ["or"], "stop": ""}, "a stop string is empty"),
        ({"prompts": ["or"], "settings": []}, "there are 1 prompts and 0 settings"),
        ({"prompts": ["or"], "max_new_tokens": 9.0}, "max_new_tokens must be a whole number of at least 1, got 9.0"),
        ({"prompts": ["or"], "seed": 0.7}, "the seed must be a whole number"),
        ({"prompts": ["or"], "seed": None}, "the seed must be a whole number"),
        ({"prompts": ["or"], "stop": [13]}, r"stop takes strings, got \[13\]"),
        ({"prompts": ["or"], "stop": None}, "stop takes strings, got None; write"),
        ({"prompts": ["or"], "temperature": "0.7"}, "temperature must be a number, got '0.7'"),
        ({"prompts": ["or"], "repetition_penalty": 1e-38}, r"repetition_penalty must be in \[0.01, 100\)"),
        ({"prompts": "or"}, r"write \[prompt\]"),
        ({"prompts": [["or"]]}, r"a prompt is a text or an ImagePrompt, got \['or'\]; several go to generate_batch"),
        ({"prompts": [None]}, "a prompt is a text or an ImagePrompt, got None"),
        ({"prompts": [[1, 2]]}, r"a prompt is a text or an ImagePrompt, got \[1, 2\]"),
    ],
)
def test_what_cannot_be_generated_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        plain_generator().generate_batch(**asked)


@pytest.mark.parametrize("longest", [1, 513])
def test_a_session_has_the_room_that_it_may_have(longest: int) -> None:
    handle = (session := plain_generator().session(slots=1)).submit("or", max_new_tokens=3)
    assert [event.handle for event in session.events() if event.completion] == [handle]
    with pytest.raises(RequestError, match=f"the model has 512 positions.*got longest={longest}"):
        plain_generator().session(longest=longest)


def test_calls_that_end_at_a_stop_string_or_are_dropped_leave_nothing_behind() -> None:
    choice = Choice(plan=None, source="none", reason="a test")
    watch = Watch(choice)
    generator = Generator(LeanModel(TARGET), TOKENIZER, {}, watch.schedule, choice, watch)
    whole = generator.generate("to be", max_new_tokens=40).text
    stop = next(letter for letter in whole[9:] if letter.isascii() and letter not in whole[:9])

    def living(calls: int) -> int:
        for _ in range(calls):
            assert 8 <= generator.generate("to be", max_new_tokens=40, stop=(stop,)).rounds < 39
            next(generator.stream("to be", max_new_tokens=40))
        gc.collect()
        return len(gc.get_objects())

    before = living(3)
    assert living(20) < before + 20


def captured_generator() -> tuple[Generator, Repeating]:
    target, recorder = graphed(LeanModel(TARGET))
    generator = Generator(target, TOKENIZER, {}, always(PLAIN), Choice(plan=None, source="none", reason="a test"))
    return generator, recorder


def test_where_forwards_are_captured_a_call_takes_over_what_the_last_one_captured() -> None:
    generator, recorder = captured_generator()
    first = generator.generate_batch(PROMPTS, max_new_tokens=9)
    captured = len(recorder.recorded)
    assert generator.generate_batch(PROMPTS, max_new_tokens=9) == first
    assert captured > 0 and len(recorder.recorded) == captured
    assert first == plain_generator().generate_batch(PROMPTS, max_new_tokens=9)


@pytest.mark.parametrize("kind", ["batch", "session"])
def test_caches_that_do_not_serve_are_let_go_before_others_are_allocated(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    generator, _ = captured_generator()
    generator.generate("to be", max_new_tokens=9)
    assert generator._spare is not None
    former = weakref.ref(generator._spare.engine)
    gone: list[bool] = []
    made = EngineMaker.make

    def watched(maker: EngineMaker, slots: int, longest: int, **options: Any) -> ReusableEngine:
        gone.append(former() is None)
        return made(maker, slots, longest, **options)

    monkeypatch.setattr(EngineMaker, "make", watched)
    if kind == "batch":
        generator.generate_batch(PROMPTS, max_new_tokens=9)
    else:
        generator.session(slots=3)
    assert gone == [True]


def test_other_slots_begin_anew_and_a_stream_that_nobody_hears_to_its_end_does_not() -> None:
    generator, recorder = captured_generator()
    expected = plain_generator().generate("to be", max_new_tokens=9)
    counts = []
    for _ in range(2):
        assert generator.generate("to be", max_new_tokens=9) == expected
        counts.append(len(recorder.recorded))
        next(generator.stream("to be", max_new_tokens=9))  # and is dropped
        assert generator.generate("to be", max_new_tokens=9) == expected
        assert len(recorder.recorded) == counts[-1]
        generator.generate_batch(PROMPTS, max_new_tokens=9)
    assert counts[0] < counts[1]


@pytest.mark.parametrize("tokens", [1, 9])
def test_a_stream_returns_what_generate_does(tokens: int) -> None:
    generator = plain_generator()
    whole, stream = generator.generate("to be", max_new_tokens=tokens), generator.stream("to be", max_new_tokens=tokens)

    def read() -> Iterator[str]:
        assert (yield from stream) == whole

    assert "".join(read()) == whole.text


class Hungry(LeanModel):
    """A model whose cache never finds memory."""

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class Watcher:
    """Keeps the reasons of all faults."""

    def __init__(self) -> None:
        self.reasons: set[str] = set()

    def note(self, done: StepOutput, /) -> None:
        self.reasons |= {fault.reason for fault in done.faults}


def planned_generator(policy: TreePolicy, drafters: dict[str, CausalModel], watcher: Watcher) -> Generator:
    name = next(iter(drafters)) if not isinstance(policy, StackPolicy) else policy.code
    plan = plan_of([(1, 10)])
    run_tokens = tuple(range(policy.max_verify_tokens + 1))
    cells = tuple(replace(cell, policy=policy, drafter=name, run_tokens=run_tokens) for cell in plan.cells)
    plan = replace(plan, cells=cells, drafters=tuple((one, model(one)) for one in drafters))
    choice = Choice(plan=plan, source="file", reason="a test")
    schedule = always(StepConfig(policy=policy, drafter=name))
    return Generator(LeanModel(TARGET), TOKENIZER, drafters, schedule, choice, watcher)


def test_a_drafter_whose_cache_finds_no_memory_is_left_out_and_told() -> None:
    watcher = Watcher()
    generator = planned_generator(ChainPolicy(length=4), {"small": Hungry(TARGET)}, watcher)
    assert generator.generate("to be", max_new_tokens=12) == plain_generator().generate("to be", max_new_tokens=12)
    (reason,) = watcher.reasons
    assert "does not fit into memory beside the target" in reason and "2.00 GiB" in reason


def two_drafters(target: LeanModel, drafters: Mapping[str, CausalModel], watcher: Watcher) -> Generator:
    """Return a generator whose plan drafts with one model at batch 1 and with another at batch 3."""
    plan, policy = plan_of([(1, 10), (3, 10)]), ChainPolicy(length=3)
    run_tokens = tuple(range(policy.max_verify_tokens + 1))
    cells = tuple(
        replace(cell, policy=policy, drafter=name, run_tokens=run_tokens)
        for cell, name in zip(plan.cells, drafters, strict=True)
    )
    plan = replace(plan, cells=cells, drafters=tuple((one, model(one)) for one in drafters))
    choice = Choice(plan=plan, source="file", reason="a test")
    setups = {cell.batch: StepConfig(policy=policy, drafter=cell.drafter) for cell in plan.cells}
    return Generator(
        target, TOKENIZER, drafters, lambda batch, context: setups[1 if batch == 1 else 3], choice, watcher
    )


def test_a_drafter_that_finds_no_memory_leaves_the_others_at_work() -> None:
    watcher = Watcher()
    drafters = {"first": Hungry(TARGET), "second": LeanModel(perturbed(TARGET, 0.02))}
    generator = two_drafters(LeanModel(TARGET), drafters, watcher)
    done = generator.generate_batch(PROMPTS, max_new_tokens=12)
    assert [one.tokens for one in done] == generated(None)
    assert any(one.rounds < len(one.tokens) - 1 for one in done)
    assert generator.generate("to be", max_new_tokens=12).rounds == 11
    assert all("does not fit into memory" in reason for reason in watcher.reasons) and watcher.reasons


def test_drafters_are_left_out_from_the_last_on_where_the_target_s_cache_finds_no_memory() -> None:
    class Tight(LeanModel):
        """A target whose cache finds no memory the first time."""

        tries = 0

        def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
            self.tries += 1
            if self.tries == 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return super().new_cache(slots, capacity)

    drafters = {name: LeanModel(perturbed(TARGET, 0.02)) for name in ("first", "second")}
    decoder = two_drafters(Tight(TARGET), drafters, Watcher())._maker.make(3, 40).engine
    assert set(decoder._drafting.drafters) == {"lookup", "first"}


def test_caches_have_spare_slots_besides_those_that_run() -> None:
    drafters = {name: LeanModel(perturbed(TARGET, 0.02)) for name in ("first", "second")}
    decoder = two_drafters(LeanModel(TARGET), drafters, Watcher())._maker.make(3, 40, spare_slots=2).engine
    assert decoder._cache.slots == 5 and decoder._slots._slots == 3


@pytest.mark.parametrize(("spare", "prefix_caching"), [(-1, True), (2, False)])
def test_spare_slots_that_cannot_be_or_keep_nothing_are_refused(spare: int, prefix_caching: bool) -> None:
    with pytest.raises(RequestError, match=f"got {spare}"):
        plain_generator().session(spare_slots=spare, prefix_caching=prefix_caching)


@pytest.mark.parametrize(("slots", "made"), [(1, {"first"}), (2, {"first", "second"}), (3, {"first", "second"})])
def test_only_drafters_that_so_many_texts_may_meet_are_made(slots: int, made: set[str]) -> None:
    """The others would take memory, and read every prompt for nothing."""
    drafters = {name: LeanModel(perturbed(TARGET, 0.02)) for name in ("first", "second")}
    decoder = two_drafters(LeanModel(TARGET), drafters, Watcher())._maker.make(slots, 40).engine
    assert set(decoder._drafting.drafters) == {"lookup"} | made


class Asked(LeanModel):
    """A drafter that counts its forwards."""

    def __init__(self) -> None:
        super().__init__(perturbed(TARGET, 0.02))
        self.forwards = 0

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        self.forwards += 1
        return super().forward(step, cache)


def test_prompts_are_read_by_whoever_drafts_first_and_by_nobody_else() -> None:
    drafters = {name: Asked() for name in ("first", "second")}
    generator = two_drafters(LeanModel(TARGET), drafters, Watcher())
    generator.generate_batch(["to be"] * 3, max_new_tokens=2)  # ended by the first round of three
    assert drafters["second"].forwards == 3 + 3 and drafters["first"].forwards == 0


def test_a_target_whose_own_cache_finds_no_memory_raises() -> None:
    choice = Choice(plan=None, source="none", reason="a test")
    with pytest.raises(DeviceError, match="do not fit into memory"):
        Generator(Hungry(TARGET), TOKENIZER, {}, always(PLAIN), choice).generate("to be")

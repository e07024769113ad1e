"""Texts in byte pieces: a character that was shown stays, and there is one text for any way of drafting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.engine.detokenizer import Detokenizer, decoded
from spectune.runtime.engine.generator import Generator
from spectune.runtime.engine.settings import Completion, GenerationSettings
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.plan_choice import Choice
from spectune.service.text.app import EndpointSettings, TextEndpoint

from ..service.text.test_text import streamed
from ..support.fallback_tokenizer import fallback_tokenizer
from ..support.plans import plan_of
from ..support.synthetic import model
from ..support.tiny_family import byte_tokenizer
from ..support.tiny_models import perturbed, tiny_llama

TOKENIZER = fallback_tokenizer()
LLAMA = tiny_llama(layers=1, seed=0, vocabulary=len(TOKENIZER))
POLICIES: dict[str, TreePolicy | None] = {"plain": None, "chain": ChainPolicy(length=5), "copy": LookupPolicy(length=4)}
WORDS = [1, 2]
LOST = "\ufffd"


def as_bytes(text: bytes) -> list[int]:
    return [3 + byte for byte in text]


@pytest.mark.parametrize(
    ("run", "text"),
    [
        ("𓀀𓀁".encode(), "𓀀𓀁"),
        ("𓀀𓀁".encode()[:5], "𓀀" + LOST),
        ("𓀀𓀁".encode()[:7], "𓀀" + LOST * 3),
        ("é".encode() + b"\xff\xfe" + "好".encode(), "é" + LOST * 2 + "好"),
        (b"\xe4\xbd" + "é".encode(), LOST * 2 + "é"),  # begun and broken off
        (b"\x80\x81" + b"A", LOST * 2 + "A"),  # goes on with nothing
        (b"\xc0\x80", LOST * 2),  # longer than it may be
        (b"\xed\xa0\x80", LOST * 3),  # half a pair of UTF-16
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_a_run_of_bytes_has_one_text_in_whatever_chunks_it_comes(run: bytes, text: str, size: int) -> None:
    tokens = [*WORDS, *as_bytes(run)]
    transcript = Detokenizer(TOKENIZER, len(WORDS))
    shown = [transcript.read(tokens[:count]) for count in range(len(WORDS) + size, len(tokens), size)]
    shown.append(transcript.finish(tokens))
    assert "".join(shown) == transcript.text == text
    assert decoded(TOKENIZER, tokens) == "to be" + text


def test_whole_characters_are_what_the_tokenizer_reads() -> None:
    tokens = [1, *as_bytes("你好 🦊".encode()), 2]
    assert decoded(TOKENIZER, tokens) == TOKENIZER.decode(tokens) == "to你好 🦊 be"


def test_a_special_token_between_two_bytes_shows_nothing() -> None:
    first, second = as_bytes("é".encode())
    assert decoded(TOKENIZER, [first, TOKENIZER.eos_token_id, second]) == LOST * 2


def test_a_tokenizer_without_byte_pieces_reads_alone() -> None:
    tokenizer = byte_tokenizer("<0xEF> to be")  # which is text there
    tokens = tokenizer("<0xEF> to 🦊")["input_ids"]
    assert decoded(tokenizer, tokens[:-1]) == tokenizer.decode(tokens[:-1]) == "<0xEF> to " + LOST


def generator(kind: str) -> Generator:
    policy, drafters = POLICIES[kind], {"small": LeanModel(perturbed(LLAMA, 0.02))}
    if policy is None:
        return Generator(LeanModel(LLAMA), TOKENIZER, {}, always(PLAIN), Choice(plan=None, source="none", reason="-"))
    plan, name = plan_of([(1, 10)]), "lookup" if kind == "copy" else "small"
    cell = replace(plan.cells[0], policy=policy, drafter=name, run_tokens=tuple(range(policy.max_verify_tokens + 1)))
    plan = replace(plan, cells=(cell,), drafters=(("small", model("small")),))
    choice = Choice(plan=plan, source="file", reason="-")
    return Generator(LeanModel(LLAMA), TOKENIZER, drafters, always(StepConfig(policy=policy, drafter=name)), choice)


def pieces_of(kind: str, settings: GenerationSettings) -> tuple[str, Completion]:
    """Return what a stream shows, and what it returns."""
    stream, shown = generator(kind).stream('x = "𓀀𓀁"\n' * 2, settings), ""
    while True:
        try:
            shown += next(stream)
        except StopIteration as end:
            done: Completion = end.value
            return shown, done


@pytest.mark.parametrize("seed", range(4))
def test_every_way_of_drafting_and_of_asking_shows_one_text(seed: int) -> None:
    settings = GenerationSettings(max_new_tokens=150, temperature=1.5, seed=seed)
    whole = {kind: generator(kind).generate('x = "𓀀𓀁"\n' * 2, settings) for kind in POLICIES}
    assert len({done.tokens for done in whole.values()}) == 1 and LOST in whole["plain"].text
    texts = {done.text for done in whole.values()}
    for kind in POLICIES:
        shown, done = pieces_of(kind, settings)
        texts |= {shown, done.text}
    assert len(texts) == 1


@pytest.mark.parametrize("kind", POLICIES)
def test_the_endpoint_streams_the_text_that_it_returns_at_once(kind: str) -> None:
    endpoint = TextEndpoint(generator(kind), EndpointSettings(name="tiny", slots=2, longest=200, most=8, warm=False))
    endpoint.start()
    asked = {"prompt": 'x = "𓀀𓀁"\n', "max_tokens": 150, "temperature": 1.5, "seed": 1}
    with TestClient(endpoint.app) as client:
        (choice,) = client.post("/v1/completions", json={"model": "tiny", **asked}).json()["choices"]
        events = streamed(client, "/v1/completions", **asked)
    settings = GenerationSettings(max_new_tokens=150, temperature=1.5, seed=1)
    own = generator("plain").generate(str(asked["prompt"]), settings).text
    assert "".join(event["choices"][0]["text"] for event in events) == choice["text"] == own

"""The judge: silent about the target's own text, loud about a wrong token, lenient with a planted near-tie."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.sampling.noise import gumbel
from spectune.tuning.measuring.exact import Judgement, judge
from spectune.tuning.recording.continuations import continuations

from ...support.tiny_models import tiny_llama

TEMPERATURES = [0.0, 0.8]


def model() -> LlamaForCausalLM:
    found: LlamaForCausalLM = tiny_llama(layers=2, seed=3).float()
    return found


def requests(temperature: float) -> list[Request]:
    prompts = [(1, 2, 3), (4,), (9, 8, 7, 6, 5)]
    return [
        Request(prompt=p, max_new_tokens=15, temperature=temperature, seed=i) for i, p in enumerate(prompts, start=5)
    ]


def own_texts(asked: list[Request]) -> list[tuple[int, ...]]:
    return continuations(LeanModel(model()), asked)


def with_rival(request: Request, gap: float) -> tuple[LlamaForCausalLM, int]:
    """Return a model in which some token scores `gap` below the drawn one behind the prompt, and that token."""
    planted = model()
    seed, place = torch.tensor([request.seed]), torch.tensor([len(request.prompt)])
    noise = gumbel(seed, place, 24)[0].double() if request.temperature else torch.zeros(24)
    scale = request.temperature or 1.0
    with torch.no_grad():
        hidden = planted.model(torch.tensor([request.prompt])).last_hidden_state[0, -1].double()
        scores = planted.lm_head.weight.double() @ hidden / scale + noise
        rival = (int(scores.argmax()) + 1) % 24
        wanted = (scores.max() - gap - noise[rival]) * scale  # the rival's logit
        planted.lm_head.weight[rival] = (hidden * wanted / (hidden @ hidden)).float()
    return planted, rival


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_targets_own_text_is_never_wrong(temperature: float) -> None:
    asked = requests(temperature)
    assert judge(model(), asked, own_texts(asked)) == Judgement(near_ties=0, wrong=0)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("place", [0, 7, 14])
def test_one_wrong_token_counts_once_when_what_follows_is_the_targets_own(temperature: float, place: int) -> None:
    asked = requests(temperature)
    texts = own_texts(asked)
    planted = (*texts[1][:place], (texts[1][place] + 1) % 24)
    behind = Request(prompt=(*asked[1].prompt, *planted), max_new_tokens=5, temperature=temperature, seed=asked[1].seed)
    texts[1] = (*planted, *own_texts([behind])[0])
    judgement = judge(model(), asked, texts)
    assert judgement == Judgement(near_ties=0, wrong=1)
    assert not judgement.is_identical


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_token_just_below_the_best_is_a_near_tie(temperature: float) -> None:
    request = requests(temperature)[2]
    planted, rival = with_rival(request, 3e-5)
    judgement = judge(planted, [request], [(rival,)])
    assert judgement == Judgement(near_ties=1, wrong=0)
    assert judgement.is_identical


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_token_a_little_further_below_the_best_is_wrong(temperature: float) -> None:
    request = requests(temperature)[2]
    planted, rival = with_rival(request, 3e-4)
    assert judge(planted, [request], [(rival,)]) == Judgement(near_ties=0, wrong=1)


def test_a_text_drawn_with_another_seed_is_wrong() -> None:
    asked = requests(0.8)
    other = [Request(prompt=r.prompt, max_new_tokens=15, temperature=0.8, seed=r.seed + 100) for r in asked]
    assert judge(model(), asked, own_texts(other)).wrong > 3


def test_every_request_needs_its_text() -> None:
    with pytest.raises(ValueError, match="shorter"):
        judge(model(), requests(0.0), [(1,)])

"""A target's endpoint: what clients of OpenAI's API ask, get, and are refused."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient
from transformers import PreTrainedTokenizerFast

from spectune.errors import RequestError
from spectune.planner.strategies.chain import ChainPolicy
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.engine.generator import Generator
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.engine.settings import GenerationSettings
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.plan_choice import Choice
from spectune.service.server import Listening
from spectune.service.text.app import EndpointSettings, TextEndpoint
from spectune.service.text.server import require_key
from spectune.service.text.worker import STOPPING, TextWorker

from ...support.plans import plan_of
from ...support.synthetic import model
from ...support.tiny_family import byte_tokenizer
from ...support.tiny_models import perturbed, tiny_llama

TOKENIZER: PreTrainedTokenizerFast = byte_tokenizer("to be or not to be")
LLAMA = tiny_llama(layers=1, seed=0, vocabulary=len(TOKENIZER))
LONG = "to be or not to be " * 3
MODEL = "tiny"
SETTINGS = EndpointSettings(name=MODEL, slots=3, longest=200, most=8, warm=False)
Json = dict[str, Any]  # JSON values
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}not"


def generator(tokenizer: PreTrainedTokenizerFast = TOKENIZER) -> Generator:
    """Return one that drafts by a plan's only cell."""
    plan, policy = plan_of([(1, 10)]), ChainPolicy(length=3)
    cell = replace(plan.cells[0], policy=policy, drafter="small", run_tokens=tuple(range(5)))
    plan = replace(plan, cells=(cell,), drafters=(("small", model("small")),))
    schedule = always(StepConfig(policy=policy, drafter="small"))
    choice = Choice(plan=plan, source="file", reason="a test")
    return Generator(LeanModel(LLAMA), tokenizer, {"small": LeanModel(perturbed(LLAMA, 0.02))}, schedule, choice)


@contextmanager
def served(settings: EndpointSettings = SETTINGS, own: Generator | None = None) -> Iterator[TestClient]:
    """Ask an endpoint in this process."""
    endpoint = TextEndpoint(own or generator(), settings)
    endpoint.start()
    with TestClient(endpoint.app) as client:
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served() as found:
        yield found


def completed(client: TestClient, **asked: Any) -> Json:
    answer = client.post("/v1/completions", json={"model": MODEL, **asked})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def streamed(client: TestClient, path: str, **asked: Any) -> list[Json]:
    with client.stream("POST", path, json={"model": MODEL, "stream": True, **asked}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 9},
        {"max_new_tokens": 20, "temperature": 0.9, "top_p": 0.9, "seed": 4},
        {"max_new_tokens": 20, "temperature": 1.0, "top_k": 5, "min_p": 0.01, "repetition_penalty": 1.2, "seed": 5},
        {"max_new_tokens": 30, "stop": ["or"]},
    ],
)
def test_an_answer_is_what_generate_returns_at_once_and_in_pieces(client: TestClient, settings: Json) -> None:
    done = generator().generate("to be", GenerationSettings(**settings))
    asked = {"prompt": "to be", "max_tokens": settings["max_new_tokens"], **settings}
    del asked["max_new_tokens"]
    whole = completed(client, **asked)
    (choice,) = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == (done.text, done.finish_reason)
    assert whole["usage"]["completion_tokens"] == len(done.tokens)
    events = streamed(client, "/v1/completions", **asked, n=None, stream_options={"include_usage": True})
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == done.text
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]][-1] == done.finish_reason
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == len(done.tokens)
    assert len({event["id"] for event in events}) == 1


def test_several_prompts_and_choices_each_draw_with_a_seed_of_their_own(client: TestClient) -> None:
    asked = {"prompt": ["to be", "or not"], "n": 2, "temperature": 1.0, "seed": 7, "max_tokens": 8}
    settings = [GenerationSettings(max_new_tokens=8, temperature=1.0, seed=7 + place) for place in range(4)]
    wanted = [
        generator().generate(prompt, own).text
        for prompt, own in zip(("to be", "to be", "or not", "or not"), settings, strict=True)
    ]
    assert [choice["text"] for choice in completed(client, **asked)["choices"]] == wanted
    texts = [""] * 4
    for event in streamed(client, "/v1/completions", **asked):
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == wanted


def test_what_a_request_leaves_open_is_as_openai_has_it_and_the_plan_s_temperature() -> None:
    with served(EndpointSettings(name=MODEL, slots=2, longest=60, temperature=1.0, warm=False)) as client:
        texts = {completed(client, prompt="to be")["choices"][0]["text"] for _ in range(4)}
        assert len(texts) > 1  # each with another seed
        assert completed(client, prompt="to be")["usage"]["completion_tokens"] <= 16
        greedy = {completed(client, prompt="to be", temperature=0)["choices"][0]["text"] for _ in range(2)}
        assert len(greedy) == 1


@pytest.mark.parametrize("content", ["to be", [{"type": "text", "text": "to "}, {"type": "text", "text": "be"}]])
def test_a_conversation_is_answered_through_the_chat_template(content: Any) -> None:
    tokenizer = byte_tokenizer("to be or not to be")
    tokenizer.chat_template = TEMPLATE
    ids = tuple(tokenizer("user: to be\nnot", add_special_tokens=False)["input_ids"])
    session = generator(tokenizer).session(slots=1, longest=100)
    session.enqueue(Request(prompt=ids, max_new_tokens=12, stop=frozenset({tokenizer.eos_token_id})))
    (done,) = [event.completion for event in session.events() if event.completion is not None]
    asked = {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 12}
    with served(own=generator(tokenizer)) as client:
        answer = client.post("/v1/chat/completions", json={"model": MODEL, **asked}).json()
        assert answer["object"] == "chat.completion"
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": done.text}
        events = streamed(client, "/v1/chat/completions", **asked)
        assert [event["choices"][0]["delta"].get("role") for event in events[:2]] == ["assistant", None][: len(events)]
        assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == done.text
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        endless = client.post("/v1/chat/completions", json={"model": MODEL, "messages": asked["messages"]}).json()
        assert endless["usage"]["total_tokens"] == 200  # as many as there is room for


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"prompt": "to be", "model": "other"}, (404, "there is no model 'other' here; this is tiny")),
        ({}, (400, "prompt: Field required")),
        ({"prompt": []}, (400, "prompt: there is none")),
        ({"prompt": ""}, (400, "the prompt is empty")),
        ({"prompt": [1, 2]}, (400, "prompt: token ids are not served here")),
        ({"prompt": "to be", "max_tokens": 0}, (400, "max_tokens: Input should be greater than or equal to 1")),
        ({"prompt": "to be", "max_tokens": 500}, (400, r"need 50\d positions and there is room for 200")),
        ({"prompt": "to be", "temperature": -1}, (400, "temperature must be 0, or in")),
        ({"prompt": "to be", "top_p": 0}, (400, "top_p must be in")),
        ({"prompt": "to be", "n": 9}, (400, "1 prompts with 9 answers each are more than the 8 requests")),
        ({"prompt": ["to be"] * 5, "n": 2}, (400, "5 prompts with 2 answers each")),
        ({"prompt": "to be", "stop": ["or"] * 17}, (400, "stop: there may be 16 stop strings")),
        ({"prompt": "to be", "stop": "o" * 1001}, (400, "of 1000 characters each")),
        ({"prompt": "to be", "logprobs": 0}, (400, "logprobs is not served here, got 0")),
        ({"prompt": ["to be", "or " * 300]}, (400, "there is room for 200")),
        ({"prompt": "to be", "tools": [{"type": "function"}]}, (400, "tools is not served here")),
        ({"prompt": "to be", "logprobs": 3}, (400, "logprobs is not served here, got 3")),
        ({"prompt": "to be", "made_up": True}, (400, "made_up is not served here")),
        ({"prompt": "to be", "stop": [""]}, (400, "a stop string is empty")),
        ({"prompt": "to be", "stream": "perhaps"}, (400, "stream: Input should be a valid boolean")),
    ],
)
def test_what_is_not_served_is_refused_in_words(client: TestClient, asked: Json, told: tuple[int, str]) -> None:
    answer = client.post("/v1/completions", json={"model": MODEL, **asked})
    assert answer.status_code == told[0]
    with pytest.raises(RuntimeError, match=told[1]):
        raise RuntimeError(answer.json()["error"]["message"])
    assert completed(client, prompt="to be")["choices"]


def test_values_that_ask_for_nothing_are_taken(client: TestClient) -> None:
    vllm = {"ignore_eos": False, "min_tokens": 0, "skip_special_tokens": True, "stop_token_ids": [], "best_of": 1}
    neutral = (
        vllm
        | {"n": None, "stream": None, "stop": None}
        | {
            "logprobs": None,
            "presence_penalty": 0.0,
            "response_format": {"type": "text"},
            "top_k": -1,
            "user": "me",
        }
    )
    assert completed(client, prompt="to be", **neutral)["choices"]


@pytest.mark.parametrize(
    ("method", "path", "sent", "status"),
    [
        ("POST", "/v1/completions", {"content": b"{", "headers": {"Content-Type": "application/json"}}, 400),
        ("POST", "/v1/completions", {"data": {"model": MODEL}}, 415),
        ("POST", "/v1/chat/completions", {"json": {"model": MODEL, "messages": []}}, 400),
        (
            "POST",
            "/v1/chat/completions",
            {"json": {"model": MODEL, "messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}},
            400,
        ),
        ("GET", "/v1/completions", {}, 405),
        ("GET", "/v1/made-up", {}, 404),
    ],
)
def test_every_refusal_is_an_error_as_clients_read_it(
    client: TestClient, method: str, path: str, sent: Json, status: int
) -> None:
    answer = client.request(method, path, **sent)
    assert answer.status_code == status and answer.json()["error"]["message"]


def test_a_conversation_needs_a_chat_template(client: TestClient) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "to be"}]}
    answer = client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 400 and "has no chat template" in answer.json()["error"]["message"]


def test_whoever_has_no_key_learns_nothing_but_that_it_lives() -> None:
    with served(EndpointSettings(name=MODEL, longest=60, api_key="sesame", warm=False)) as client:
        paths = ("/v1/models", "/metrics")
        assert [client.get(path).status_code for path in paths] == [401, 401]
        assert client.get("/v1/models", headers={"Authorization": "Bearer other"}).status_code == 401
        assert client.post("/v1/completions", json={"model": MODEL, "prompt": "to be"}).status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Basic sesame"}).status_code == 401
        own = {"Authorization": "Bearer sesame"}
        assert client.get("/v1/models", headers=own).json()["data"][0]["max_model_len"] == 60
        assert client.get("/health").status_code == 200


def test_an_endpoint_without_a_key_is_asked_under_its_own_name_alone() -> None:
    with served(EndpointSettings(name=MODEL, longest=60, hosts=("localhost",), warm=False)) as client:
        assert client.get("/health", headers={"Host": "evil.example"}).json()["error"]["code"] == "wrong_host"
        assert client.get("/health", headers={"Host": "localhost:8000"}).status_code == 200


@pytest.mark.parametrize("key", ["", " ", "a b", "sésame", "key\n"])
def test_a_key_that_no_header_carries_is_none(key: str) -> None:
    with pytest.raises(RequestError, match="an API key is of printable ASCII characters"):
        EndpointSettings(name=MODEL, api_key=key)


def test_a_temperature_that_no_text_is_drawn_with_is_refused() -> None:
    with pytest.raises(RequestError, match="temperature must be 0, or in"):
        EndpointSettings(name=MODEL, temperature=200.0)


def test_a_request_that_ignores_the_end_of_text_goes_on_behind_it() -> None:
    asked = {"prompt": "to be", "max_tokens": 60, "temperature": 1.5}
    with served() as client:
        seed = next(s for s in range(60) if completed(client, **asked, seed=s)["choices"][0]["finish_reason"] == "stop")
        on = completed(client, **asked, seed=seed, ignore_eos=True)
        assert (on["choices"][0]["finish_reason"], on["usage"]["completion_tokens"]) == ("length", 60)


def test_more_than_may_wait_are_told_to_come_again() -> None:
    target, own = slow()
    endpoint = TextEndpoint(own, EndpointSettings(name=MODEL, slots=1, longest=100, most=1, warm=False))
    asked = {"model": MODEL, "prompt": "to be", "max_tokens": 4}
    with listening(endpoint) as url, ThreadPoolExecutor(1) as pool:
        first = pool.submit(httpx.post, f"{url}/v1/completions", json=asked, timeout=30)
        until(lambda: endpoint.worker.open == 1)
        later = httpx.post(f"{url}/v1/completions", json=asked)
        assert later.status_code == 429 and int(later.headers["Retry-After"]) > 0
        target.go_on.set()
        assert first.result().status_code == 200
        until(lambda: endpoint.worker.open == 0)
        assert httpx.post(f"{url}/v1/completions", json=asked).status_code == 200


def test_others_than_this_machine_need_a_key() -> None:
    listening = Listening(host="0.0.0.0", is_behind_proxy=True)
    with pytest.raises(RequestError, match="without a key anybody who reaches"):
        require_key(listening, None)
    require_key(listening, "a key")
    require_key(Listening(), None)


def test_many_at_once_get_their_own_texts_and_are_counted() -> None:
    prompts = [LONG + "or " * place for place in range(8)]
    wanted = [generator().generate(prompt, max_new_tokens=20).text for prompt in prompts]
    with served() as client:

        def ask(prompt: str) -> str:
            found: str = completed(client, prompt=prompt, max_tokens=20)["choices"][0]["text"]
            return found

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, prompts)) == wanted
        last = completed(client, prompt=prompts[-1], max_tokens=20)["usage"]
        assert last["prompt_tokens_details"]["cached_tokens"] > 0
        counted = client.get("/metrics").text
    assert 'spectune_requests_total{finish_reason="length"} 9.0' in counted
    assert "spectune_new_tokens_total 180.0" in counted and "spectune_requests_open 0.0" in counted


@pytest.mark.parametrize(("spare", "is_kept"), [(1, True), (0, False)])
def test_texts_are_kept_besides_those_that_are_decoded(spare: int, is_kept: bool) -> None:
    with served(replace(SETTINGS, slots=1, spare_slots=spare)) as client:
        for prompt in (LONG, "not " * 15):
            completed(client, prompt=prompt, max_tokens=4)
        usage = completed(client, prompt=LONG + "be", max_tokens=4)["usage"]
    assert (usage["prompt_tokens_details"]["cached_tokens"] > 0) == is_kept


class Slow(LeanModel):
    """A target each of whose rounds waits until it is let go on."""

    def __init__(self) -> None:
        super().__init__(LLAMA)
        self.go_on = Event()

    def forward(self, step: Any, cache: Any) -> Any:
        self.go_on.wait(20)
        return super().forward(step, cache)


def slow() -> tuple[Slow, Generator]:
    target = Slow()
    return target, Generator(target, TOKENIZER, {}, always(PLAIN), Choice(plan=None, source="none", reason="a test"))


@contextmanager
def listening(endpoint: TextEndpoint) -> Iterator[str]:
    """Serve on a real socket, from which clients go away."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        endpoint.start()
        server = uvicorn.Server(uvicorn.Config(endpoint.app, log_level="error", ws="none"))
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_whoever_goes_away_is_decoded_for_no_more(is_streamed: bool) -> None:
    target, own = slow()
    endpoint = TextEndpoint(own, SETTINGS)
    asked = {"model": MODEL, "prompt": "to be", "max_tokens": 190, "stream": is_streamed}
    with listening(endpoint) as url:
        with httpx.Client() as client:
            if is_streamed:
                with client.stream("POST", f"{url}/v1/completions", json=asked) as answer:
                    assert answer.status_code == 200
            else:
                with pytest.raises(httpx.ReadTimeout):
                    client.post(f"{url}/v1/completions", json=asked, timeout=0.3)
        until(lambda: endpoint.worker.open == 0)
        target.go_on.set()
        until(lambda: endpoint.worker.served.ended["cancelled"] == 1)
        assert endpoint.worker.served.new_tokens < 190
        answer = httpx.post(f"{url}/v1/completions", json={**asked, "max_tokens": 4, "stream": False})
        assert answer.json()["usage"]["completion_tokens"] == 4


class Failing(Generator):
    """Whose sessions fail at their first round, as many as are said; and cannot be made after so many more."""

    failures = 1
    sessions = 99

    def session(self, **options: Any) -> Scheduler:
        if not self.sessions:
            raise MemoryError("none left")
        self.sessions -= 1
        made = super().session(**options)
        if self.failures:
            self.failures -= 1

            def step() -> Any:
                raise MemoryError("a round does not fit")

            made.step = step  # type: ignore[method-assign]
        return made


def failing(sessions: int) -> Failing:
    own = generator()
    own.__class__ = Failing
    assert isinstance(own, Failing)
    own.sessions = sessions
    return own


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_round_that_fails_is_told_and_the_next_request_served(is_streamed: bool) -> None:
    with served(own=failing(99)) as client:
        if is_streamed:
            (event,) = streamed(client, "/v1/completions", prompt="to be")
            assert "a round does not fit" in event["error"]["message"]
        else:
            answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "to be"})
            assert answer.status_code == 503 and "a round does not fit" in answer.json()["error"]["message"]
        assert completed(client, prompt="to be")["choices"]


def test_an_endpoint_that_cannot_decode_any_more_says_so() -> None:
    with served(own=failing(1)) as client:
        client.post("/v1/completions", json={"model": MODEL, "prompt": "to be"})
        until(lambda: client.get("/health").status_code == 503)
        answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "to be"})
        assert answer.status_code == 503 and "start the endpoint again" in answer.json()["error"]["message"]


def test_what_cannot_be_made_at_all_is_told_at_the_start() -> None:
    own = failing(0)
    with pytest.raises(MemoryError, match="none left"):
        TextWorker(own.session, most=1).start()


def test_requests_under_way_are_told_that_the_endpoint_ends() -> None:
    target, own = slow()
    worker = TextWorker(lambda: own.session(slots=1, longest=100), most=4)

    async def asked() -> str:
        worker.start()
        asking = own.request("to be", GenerationSettings(max_new_tokens=90))
        (answer,) = await worker.ask([asking], (), is_streamed=False)
        stopping = asyncio.create_task(asyncio.to_thread(worker.stop))
        target.go_on.set()
        await stopping
        try:
            await answer.whole()
        except Exception as error:
            return str(error)
        return "ended"

    assert asyncio.run(asked()) in ("ended", STOPPING)
    assert not worker.is_alive

"""An endpoint refuses what it does not serve, in words and at once, and tells open requests that it ends."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient

from spectune.errors import RequestError
from spectune.runtime.engine.prompts import require_short
from spectune.service.server import HttpServer
from spectune.service.text.app import TextEndpoint
from spectune.service.text.worker import STOPPING

from ...support.fallback_tokenizer import fallback_tokenizer
from ...support.tiny_family import byte_tokenizer
from .test_text import MODEL, SETTINGS, TEMPLATE, TOKENIZER, completed, generator, served, slow, until

NUMBERS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "n")
Json = dict[str, Any]  # JSON values


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    tokenizer = byte_tokenizer("to be or not to be")
    tokenizer.chat_template = TEMPLATE
    with served(own=generator(tokenizer)) as found:
        yield found


def refusal(client: TestClient, path: str, **asked: Any) -> str:
    answer = client.post(
        path, content=json.dumps({"model": MODEL, **asked}), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize("value", [True, False, "1"])
@pytest.mark.parametrize("name", NUMBERS)
def test_only_a_number_is_a_number(client: TestClient, name: str, value: bool | str) -> None:
    said = refusal(client, "/v1/completions", **{"prompt": "to be", name: value})
    assert said.startswith(f"{name}: Input should be a valid") and said.endswith(f"got {json.dumps(value)}")


@pytest.mark.parametrize("name", [*NUMBERS, "max_completion_tokens"])
def test_only_a_number_is_a_number_in_a_chat(client: TestClient, name: str) -> None:
    messages = [{"role": "user", "content": "to be"}]
    assert refusal(client, "/v1/chat/completions", messages=messages, **{name: True}).startswith(f"{name}: ")


@pytest.mark.parametrize("value", [1, 0, "true"])
@pytest.mark.parametrize("name", ["stream", "ignore_eos"])
def test_only_a_boolean_is_a_boolean(client: TestClient, name: str, value: int | str) -> None:
    said = refusal(client, "/v1/completions", **{"prompt": "to be", name: value})
    assert said == f"{name}: Input should be a valid boolean, got {json.dumps(value)}"


def test_whole_numbers_serve_where_numbers_are_asked_for(client: TestClient) -> None:
    assert completed(client, prompt="to be", temperature=1, top_p=1, min_p=0, seed=3, n=1, max_tokens=2)["choices"]


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2], [3]], [1.5], ["to be", 3]])
def test_token_ids_are_named(client: TestClient, prompt: Any) -> None:
    said = refusal(client, "/v1/completions", prompt=prompt)
    assert said == "prompt: token ids are not served here; send text, or a list of texts"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        {"type": "input_image", "image_url": "http://x"},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "http://x"}},
        {"type": "file", "file": {}},
    ],
)
def test_parts_that_are_no_text_are_named(client: TestClient, part: Json) -> None:
    content = [{"type": "text", "text": "to be"}, part]
    said = refusal(client, "/v1/chat/completions", messages=[{"role": "user", "content": content}])
    assert said == f"messages.0.content: parts of type '{part['type']}' are not served here; send text alone"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "\ud800"}),
        ("/v1/completions", {"prompt": ["to be", "a\udfff"]}),
        ("/v1/completions", {"prompt": "to be", "stop": ["\ud800"]}),
        ("/v1/completions", {"prompt": "to be", "model": "\ud800"}),
        ("/v1/completions", {"prompt": "to be", "\ud800": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "\ud800", "content": "to be"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]}),
    ],
)
def test_half_a_character_is_refused_wherever_it_stands(client: TestClient, path: str, asked: Json) -> None:
    assert refusal(client, path, **asked)
    assert completed(client, prompt="to be", max_tokens=2)["choices"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_prompt_that_is_far_too_long_is_never_tokenized(
    client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokenize(*_arguments: object, **_options: object) -> None:
        raise AssertionError("it is tokenized")

    monkeypatch.setattr("spectune.runtime.engine.prompts._encoded", tokenize)
    text = "to be " * (10 * 2**20 // 6)
    asked: Json = {"prompt": text}
    if path.endswith("chat/completions"):
        half = len(text) // 2
        asked = {"messages": [{"role": "user", "content": text[:half]}, {"role": "user", "content": text[half:]}]}
    most = 200 * max(len(piece.encode()) for piece in TOKENIZER.get_vocab())
    begun = time.monotonic()
    assert f"bytes, and the tokens of 200 positions hold at most {most}" in refusal(client, path, **asked)
    assert time.monotonic() - begun < 10


def test_a_body_that_is_too_large_is_refused_before_it_is_read(client: TestClient) -> None:
    answer = client.post(
        "/v1/completions", content=b" " * (16 * 2**20 + 1), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413


@pytest.mark.parametrize("tokenizer", [TOKENIZER, fallback_tokenizer()])
def test_a_text_that_fits_is_never_refused_by_its_bytes(tokenizer: Any) -> None:
    for text in ("to be or not to be " * 20, "é🦊" * 40, "\n" * 100):
        positions = len(tokenizer(text)["input_ids"])
        require_short(tokenizer, [text], positions)
    with pytest.raises(RequestError, match="shorten the prompt"):
        require_short(tokenizer, ["to be " * 10_000], 100)


def test_python_callers_are_refused_at_once_too() -> None:
    own = generator()
    positions = 512
    assert own._target.longest_context >= positions
    for ask in (own.generate, lambda text: own.generate_batch([text])):
        with pytest.raises(RequestError, match="shorten the prompt"):
            ask("to be " * 10**6)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_endpoint_that_is_stopped_tells_open_requests_so(is_streamed: bool) -> None:
    target, own = slow()
    endpoint = TextEndpoint(own, SETTINGS)
    asked = {"model": MODEL, "prompt": "to be", "max_tokens": 190, "stream": is_streamed}
    endpoint.start()
    with socket.socket() as listener, ThreadPoolExecutor(2) as pool:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
        server = HttpServer(uvicorn.Config(endpoint.app, log_level="error", ws="none"), endpoint.worker.stop)
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        answers = [pool.submit(httpx.post, url, json=asked, timeout=30) for _ in range(2)]
        until(lambda: endpoint.worker.open == 2)
        server.should_exit = True
        until(lambda: endpoint.worker._is_stopping)
        target.go_on.set()
        for answer in answers:
            told = answer.result()
            if is_streamed:
                *_, error, done = [line for line in told.text.splitlines() if line]
                assert json.loads(error.removeprefix("data: "))["error"]["message"] == STOPPING
                assert done == "data: [DONE]"
            else:
                assert (told.status_code, told.json()["error"]["message"]) == (503, STOPPING)
        thread.join(30)
        assert not thread.is_alive()

"""The load client: what it measures is what the server did, and what a server does wrong is named."""

from __future__ import annotations

import json
import random
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spectune.db.remote.certificates import CA_VARIABLE
from spectune.engines.answers import LoadResult, RequestResult
from spectune.engines.load import SamplingParams, open_loop
from spectune.engines.server import Server, ServerTimeouts, reached, started
from spectune.engines.table import SERVERS
from spectune.errors import MeasurementError, NoRoomError, RequestError, StoreError
from spectune.profiler.prompt import Prompt

from ..support import fake_openai_server
from ..support.openai_program import LLAMA, VLLM, chats, texts

ENGINE = SERVERS["vllm"]
LIMITS = ServerTimeouts(start_s=30.0, stall_s=1.0)
DRAFTS = ("--speculative-config", '{"method": "draft_model", "model": "small", "num_speculative_tokens": 3}')
SAMPLING = SamplingParams(max_tokens=24)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with started(ENGINE, [*VLLM, *DRAFTS], LIMITS) as running:
        yield running


@pytest.mark.parametrize("make", [texts, chats])
def test_the_client_counts_the_tokens_that_the_server_sent(
    make: Callable[[int], list[Prompt]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How near its times are is measured by `benchmarks/load_client.py`."""
    file = tmp_path / "truth"
    monkeypatch.setenv("FAKE_TRUTH", str(file))
    with started(ENGINE, [*VLLM, *DRAFTS], LIMITS) as running:
        load = running.measure(make(8), SamplingParams(max_tokens=256), concurrency=2).load
    truth = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(one.tokens for one in load.answers) == sorted(tokens for tokens, _, _ in truth)
    assert all(0.0 < one.ttft_ms < one.e2e_ms for one in load.answers)


def test_counters_tell_what_the_answers_hold(server: Server) -> None:
    measured = server.measure(texts(6), SAMPLING, concurrency=3)
    counts, load = measured.counts, measured.load
    assert (counts.generated, counts.answers) == (load.tokens, 6.0) == (6 * 24, 6.0)
    assert sum(counts.by_position) == counts.accepted
    rounds = counts.rounds(load.tokens, 6)
    assert rounds + counts.accepted == load.tokens - 6


def test_no_more_requests_are_in_flight_than_wanted(server: Server) -> None:
    alone = server.measure(texts(6), SAMPLING, concurrency=1).load
    together = server.measure(texts(6), SAMPLING, concurrency=3).load
    assert alone.wall_s >= sum(one.e2e_ms for one in alone.answers) / 1000.0  # one behind the other
    assert together.wall_s < sum(one.e2e_ms for one in together.answers) / 1000.0  # some at once
    assert together.steady_tokens_per_s == 3 * together.tokens_per_s_per_user


def test_an_open_loop_sends_at_its_rate(server: Server) -> None:
    load = open_loop(server.address, texts(40), 100.0, SamplingParams(max_tokens=2), seed=1)
    assert (load.rate, load.concurrency, len(load.ended)) == (100.0, 0, 40)
    gaps = random.Random(1)
    assert load.wall_s >= sum(gaps.expovariate(100.0) for _ in range(39))  # none is sent before its moment


def test_a_key_is_sent_and_shown_nowhere() -> None:
    command = [*VLLM, "--api-key", "sesame-123"]
    with started(ENGINE, command, LIMITS) as running:
        assert running.measure(texts(2), SAMPLING, concurrency=1).load.tokens == 48
        assert "sesame" not in repr(running.address)
        with pytest.raises(RequestError, match="refuses the API key"):
            reached(ENGINE, running.address.url, LIMITS, key="another")
        assert reached(ENGINE, running.address.url, LIMITS, key="sesame-123").address.model == "target"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("500", "2 of 2 requests failed, the first: status 500"),
        ("breaks off", "the answer broke off after"),
        ("hangs", "ReadTimeout"),
        ("dies", "(?s)vllm ended with status 1.*fatal: a bad state"),
    ],
)
def test_what_a_server_does_wrong_is_named(fault: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", fault)
    with started(ENGINE, VLLM, LIMITS) as running, pytest.raises(MeasurementError, match=said):
        running.measure(texts(2), SAMPLING, concurrency=2)


def test_a_server_that_tells_a_key_again_has_it_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", "500")
    with started(ENGINE, VLLM, LIMITS, key="sesame-123") as running:
        with pytest.raises(MeasurementError, match=r"an internal error behind Bearer \.\.\."):
            running.measure(texts(1), SAMPLING, concurrency=1)
        with pytest.raises(MeasurementError, match=r"answers 500.*Bearer \.\.\."):
            running.post("/v1/completions", {"prompt": "a", "max_tokens": 2})


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield the URL of a server with a certificate of its own, and the certificate's file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    file, key = folder / "certificate.pem", folder / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*command, *names, "-out", file, "-keyout", key], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    serving = fake_openai_server.Server(
        ("127.0.0.1", 0), fake_openai_server.handler(fake_openai_server.Fake(["-m", "m"]))
    )
    serving.socket = context.wrap_socket(serving.socket, server_side=True)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"https://localhost:{serving.server_address[1]}", file
    serving.shutdown()
    serving.server_close()


def test_a_certificate_of_an_unknown_authority_is_refused_and_the_way_to_trust_it_is_told(
    encrypted: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, file = encrypted
    with pytest.raises(MeasurementError, match=rf"certificate is not valid here: self.signed.*{CA_VARIABLE}") as caught:
        reached(ENGINE, url, LIMITS)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv(CA_VARIABLE, str(file))
    found = reached(ENGINE, url, LIMITS)
    assert found.measure(texts(2), SAMPLING, concurrency=2).load.tokens == 48
    monkeypatch.setenv(CA_VARIABLE, str(file.with_name("key.pem")))
    with pytest.raises(StoreError, match="holds no certificates"):
        reached(ENGINE, url, LIMITS)


def test_a_command_that_serves_tls_is_refused_at_once() -> None:
    with pytest.raises(RequestError, match="serves TLS"), started(ENGINE, [*VLLM, "--ssl-keyfile", "k"], LIMITS):
        pass


def test_want_of_memory_is_told_from_other_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", "no room at start")
    with pytest.raises(NoRoomError, match=r"(?s)does not start.*cudaMalloc failed"), started(ENGINE, VLLM, LIMITS):
        pass
    monkeypatch.setenv("FAKE_FAULT", "dies")
    with started(ENGINE, [*VLLM, "--oom", "1"], LIMITS) as running, pytest.raises(NoRoomError, match="out of memory"):
        running.measure(texts(1), SAMPLING, concurrency=1)


def test_a_death_at_start_quotes_the_log_without_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", "ends at start")
    with pytest.raises(MeasurementError) as caught, started(ENGINE, [*VLLM, "--api-key", "sesame-123"], LIMITS):
        pass
    assert "a certain reason" in str(caught.value) and "sesame" not in str(caught.value)


def test_a_server_of_another_model_is_refused(server: Server) -> None:
    with pytest.raises(RequestError, match="serves target, not other; give one of these with --model-name"):
        reached(ENGINE, server.address.url, LIMITS, model="other")


def test_a_port_in_use_is_refused(server: Server) -> None:
    port = server.address.url.rpartition(":")[2]
    said = f"something listens on port {port} already"
    with pytest.raises(RequestError, match=said), started(ENGINE, [*VLLM, "--port", port], LIMITS):
        pass


def test_a_url_that_nobody_serves_is_named() -> None:
    with pytest.raises(MeasurementError, match="does not answer"):
        reached(ENGINE, "http://127.0.0.1:9", LIMITS)
    with pytest.raises(RequestError, match="no URL"):
        reached(ENGINE, "localhost", LIMITS)


def test_no_command_and_no_prompts_are_refused(server: Server) -> None:
    with pytest.raises(RequestError, match="no command starts the server"), started(ENGINE, [], LIMITS):
        pass
    with pytest.raises(RequestError, match="a load needs a prompt"):
        server.measure([], SAMPLING, concurrency=1)


def test_a_server_without_counters_is_named() -> None:
    with started(SERVERS["llama.cpp"], LLAMA, LIMITS) as running:
        assert running.version == "b11549"
        measured = running.measure([Prompt(text="a"), Prompt(text="b")], SAMPLING, concurrency=1)
    assert (measured.counts.drafts, measured.counts.generated, measured.counts.answers) == (0.0, 48.0, None)


def test_percentiles_are_of_the_answers_that_ended() -> None:
    answers = [RequestResult(prompt=number, ttft_ms=10.0 * number, e2e_ms=100.0, tokens=2) for number in range(1, 101)]
    load = LoadResult(
        concurrency=4, answers=(*answers, RequestResult(prompt=0, failure="x")), wall_s=1.0, client_share=0.0
    )
    found = load.percentiles("ttft_ms")
    assert (found.mean, found.p50) == (505.0, 505.0)
    assert found.p90 == pytest.approx(901.0) and found.p99 == pytest.approx(990.1)
    with pytest.raises(MeasurementError, match="1 of 101 requests failed, the first: x"):
        load.require_whole()

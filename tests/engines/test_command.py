"""A server's command: what drafts is taken out and put in, keys are hidden, all else stays."""

from __future__ import annotations

import json

import pytest

from spectune.engines.command import hidden, port_of, secrets, typed, without
from spectune.engines.server_engine import Start, stages_of
from spectune.engines.setting import EngineDrafter, Stage
from spectune.engines.table import SERVERS
from spectune.errors import RequestError

LLAMA, VLLM = SERVERS["llama.cpp"], SERVERS["vllm"]
SERVER = ["llama-server", "-m", "t.gguf", "-md", "small.gguf", "--draft-max=4", "-np", "8", "-ngl", "99"]
SERVE = ["vllm", "serve", "M", "--tensor-parallel-size", "2"]
OWN = ["--speculative-config", '{"method": "eagle3", "model": "org/head", "num_speculative_tokens": 2}']


def test_options_and_their_values_are_taken_out() -> None:
    assert without(["a", "--x", "1", "--y=2", "--z", "b"], ("--x", "--y"), ("--z",)) == ["a", "b"]


def test_keys_are_hidden_wherever_they_stand() -> None:
    command = ["docker", "run", "-e", "HF_TOKEN=abc", "-e", "API_KEY=def", "v", "--api-key", "ghi", "--api-key=jkl"]
    assert typed(command) == "docker run -e HF_TOKEN=... -e API_KEY=... v --api-key ... --api-key=..."
    assert sorted(secrets(command)) == ["abc", "def", "ghi", "jkl"]
    assert hidden(SERVER) == SERVER


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("--api-key abc --admin-api-key def", "--api-key ... --admin-api-key ..."),
        ("--api_key abc --admin_api_key=def", "--api_key ... --admin_api_key=..."),
        ("--api-key abc def ghi= --port 1 2", "--api-key ... ... ... --port 1 2"),
        ("--hf-token abc M --token=def", "--hf-token ... M --token=..."),
        ("-hft -abc --ssl-keyfile-password def", "-hft ... --ssl-keyfile-password ..."),
        ("--api-key -a=b", "--api-key ..."),
    ],
)
def test_a_key_is_hidden_by_the_end_of_its_option_s_name(given: str, shown: str) -> None:
    command = given.split()
    assert " ".join(hidden(command)) == shown
    for word in secrets(command):
        given = given.replace(word, "...")
    assert given == shown


@pytest.mark.parametrize(
    "option",
    ["--tokenizer", "--max-tokens", "--max-num-batched-tokens", "--max-model-len", "--api-key-file", "--ssl-keyfile"],
)
def test_options_that_only_resemble_those_of_keys_are_shown(option: str) -> None:
    for command in (["v", option, "x"], ["v", option.replace("-", "_").replace("__", "--"), "x"], ["v", f"{option}=x"]):
        assert hidden(command) == command and secrets(command) == []


def test_the_port_of_a_command_is_read() -> None:
    assert port_of(["v", "--port", "81"]) == port_of(["v", "--port=81"]) == 81
    assert port_of(["v"]) is None
    with pytest.raises(RequestError, match="--port is 'x'"):
        port_of(["v", "--port", "x"])


def test_llama_cpp_decodes_plainly_without_its_draft_model() -> None:
    plain = ["llama-server", "-m", "t.gguf", "-np", "8", "-ngl", "99", "--metrics"]
    assert LLAMA.plain(SERVER) == plain == LLAMA.plain(plain)


def test_llama_cpp_drafts_with_the_command_s_model_and_by_n_grams() -> None:
    model, ngrams = LLAMA.sources(SERVER, [], 8, "b11549")
    assert (model.name, model.is_model, ngrams.is_model) == ("small", True, False)
    flags = LLAMA.flags(model, {1: 3, 4: 3}, "b11549")
    assert flags[:6] == ("--spec-type", "draft-simple", "--spec-draft-model", "small.gguf", "--spec-draft-n-max", "3")
    assert LLAMA.flags(ngrams, {1: 8}, "b0")[:2] == ("--spec-type", "ngram-simple")
    old = LLAMA.flags(model, {1: 3}, "b7010")
    assert old[:4] == ("--model-draft", "small.gguf", "--draft-max", "3")


def test_a_draft_model_of_the_hub_is_refused() -> None:
    with pytest.raises(RequestError, match="give its file"):
        LLAMA.sources(["llama-server", "-hfd", "org/small"], [], 8, "b11549")


@pytest.mark.parametrize(
    ("own", "name", "written"),
    [
        (
            ("--spec-type", "draft-eagle3", "-md", "head.gguf", "--spec-draft-p-min", "0.5"),
            "head",
            ("--spec-type", "draft-eagle3", "--spec-draft-model", "head.gguf", "--spec-draft-n-max", "3"),
        ),
        (("--spec-type=draft-mtp",), "draft-mtp", ("--spec-type", "draft-mtp", "--spec-draft-n-max", "3")),
        (
            ("--spec-type", "ngram-map-k,draft-dflash", "-md", "b.gguf", "--spec-ngram-map-k-size-m", "9"),
            "b",
            (
                *("--spec-type", "ngram-map-k,draft-dflash", "--spec-ngram-map-k-size-m", "9"),
                *("--spec-draft-model", "b.gguf", "--spec-draft-n-max", "3"),
            ),
        ),
        (
            ("--spec-type", "ngram-map-k4v", "--spec-ngram-map-k4v-size-n", "8"),
            "ngram-map-k4v",
            ("--spec-type", "ngram-map-k4v", "--spec-ngram-map-k4v-size-n", "8", "--spec-ngram-map-k4v-size-m", "3"),
        ),
    ],
)
def test_llama_cpp_drafts_by_the_command_s_own_types_with_other_lengths(
    own: tuple[str, ...], name: str, written: tuple[str, ...]
) -> None:
    command = ["llama-server", "-m", "t.gguf", *own]
    assert LLAMA.plain([*command, "--spec-default"]) == ["llama-server", "-m", "t.gguf", "--metrics"]
    found, ngrams = LLAMA.sources(command, [], 8, "b11549")
    assert (found.name, found.checked, ngrams.name) == (name, "parsed only", "n-grams")
    assert found.is_model == ("draft-" in found.setting.method)
    flags = LLAMA.flags(found, {1: 3}, "b11549")
    assert flags[: len(written)] == written
    assert ("--spec-draft-n-min" in flags) == found.is_model


@pytest.mark.parametrize("types", ["ngram-mod", "draft-mtp,draft-simple", "ngram-simple,ngram-cache", "suffix"])
def test_draft_types_of_llama_cpp_whose_length_cannot_be_chosen_are_refused(types: str) -> None:
    with pytest.raises(RequestError, match=f"how --spec-type {types} takes a length is not known here"):
        LLAMA.sources(["llama-server", "--spec-type", types], [], 8, "b11549")


def test_vllm_drafts_as_the_command_says_with_other_lengths() -> None:
    assert VLLM.plain([*SERVE, *OWN, "--speculative-config.method", "x"]) == SERVE
    own, ngrams = VLLM.sources([*SERVE, *OWN], [], 8, "0.32.0")
    assert (own.name, own.checked, ngrams.name) == ("head", "parsed only", "n-grams")
    name, text = VLLM.flags(own, {1: 5, 8: 2}, "0.32.0")
    assert name == "--speculative-config"
    assert json.loads(text) == {
        "method": "eagle3",
        "model": "org/head",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 2, 5], [3, 4096, 2]],
    }


def test_vllm_takes_a_draft_model_by_name_and_searches_n_grams() -> None:
    small = EngineDrafter(name="small", path="org/small", form="model")
    model, ngrams = VLLM.sources(SERVE, [small], 4, "0.32.0")
    assert json.loads(VLLM.flags(model, {1: 4}, "0.32.0")[1]) == {
        "method": "draft_model",
        "model": "org/small",
        "num_speculative_tokens": 4,
    }
    assert json.loads(VLLM.flags(ngrams, {1: 4}, "0.32.0")[1])["method"] == "ngram"


@pytest.mark.parametrize("text", ["{", "[1]", "3"])
def test_a_configuration_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="no JSON object"):
        VLLM.sources([*SERVE, "-sc", text], [], 4, "0.32")


def test_a_threshold_is_far_from_what_was_measured() -> None:
    stages = stages_of({1: 5, 4: 5, 16: 2, 64: 0})
    assert stages == (
        Stage(first=1, last=8, length=5),
        Stage(first=9, last=32, length=2),
        Stage(first=33, last=None, length=0),
    )
    assert stages_of({2: 3}) == (Stage(first=1, last=None, length=3),)


def test_a_start_that_drafts_nothing_is_plain() -> None:
    assert Start.of("small", {1: 0, 4: 0}) == Start.of("plain", {1: 0, 4: 0})
    table = Start.of("small", {4: 2, 1: 5})
    assert (table.is_table, table.longest, table.at(4)) == (True, 5, 2)
    assert table.label == "small, tokens by concurrency: 5 at 1, 2 at 4"

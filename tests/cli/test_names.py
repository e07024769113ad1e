"""Names that people type elsewhere: of commands, options, devices, number formats, sizes and latency bounds."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from spectune.cli import main, options
from spectune.cli.command import Args, Command, command
from spectune.cli.commands import COMMANDS, GROUPS
from spectune.cli.group import ANSWERS
from spectune.cli.option import option
from spectune.planner.plans.objective import LatencyBound, parse_bound

MANY = 12  # options: from so many on the help shows basic ones first
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class EchoArgs(Args):
    drafters: dict[str, str] = options.drafters
    device: str = options.device
    dtype: str = options.dtype
    max_memory: int | None = option("Bytes.", callback=options.size)


@command(EchoArgs)
def echo(args: EchoArgs) -> None:
    click.echo(repr({name: value for name, value in vars(args).items() if name != "settings"}))


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, terminal_width=120)


def read(*arguments: str) -> Any:
    result = CliRunner().invoke(echo, arguments)
    assert result.exit_code == 0, result.output
    return ast.literal_eval(result.output)


def every_command() -> list[tuple[str, click.Command]]:
    found = []
    for name, entry in COMMANDS.items():
        command = entry.load()
        below = command.commands if isinstance(command, click.Group) else {}
        found += [(name, command), *((f"{name} {each}", one) for each, one in below.items())]
    return found


EVERY = every_command()


def test_the_help_lists_the_commands_by_group_and_in_its_order() -> None:
    shown = typed("-h").stdout.partition("\nCommands:\n")[2]
    titles = re.findall(r"(?m)^ (\w+):$", shown)
    names = re.findall(r"(?m)^  (\w+)  ", shown)
    assert titles == ["Start", "Measure", "Use", "Look", "Manage", "More"] == [*GROUPS]
    assert names == [name for group in GROUPS.values() for name in group]
    assert names[:7] == ["demo", "doctor", "profile", "plan", "validate", "tune", "advise"]


@pytest.mark.parametrize("path", [name for name, _ in EVERY])
def test_h_is_help_everywhere(path: str) -> None:
    short, long = typed(*path.split(), "-h"), typed(*path.split(), "--help")
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert short.stdout.startswith("Usage: ")


@pytest.mark.parametrize(
    ("name", "right"),
    [
        *[
            ("bench", "validate"),
            ("benchmark", "validate"),
            ("compare", "validate"),
            ("sweep", "plan"),
            ("search", "plan"),
        ],
        *[("autotune", "plan"), ("optimize", "plan"), ("chat", "run"), ("generate", "run"), ("server", "endpoint")],
        *[("api", "endpoint"), ("config", "export"), ("deploy", "export"), ("ls", "list"), ("info", "doctor")],
        *[("quantize", "convert"), ("finetune", "train"), ("rm", "retire"), ("metrics", "advise"), ("init", "demo")],
        *[("BENCH", "validate"), ("benchmrk", "validate"), ("shwo", "show"), ("profil", "profile"), ("Plan", "plan")],
    ],
)
def test_an_unknown_command_is_answered_with_the_right_one(name: str, right: str) -> None:
    result = typed(name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"there is no command {name!r}" in result.stderr
    assert re.search(rf"\b{right}\b", result.stderr.partition("Error: ")[2].replace(repr(name), ""))


def test_a_word_like_no_command_is_answered_with_the_help() -> None:
    assert "spectune --help" in typed("zzzzzz").stderr.partition("Error: ")[2]


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_names_a_command_that_exists_with_options_that_it_has(name: str) -> None:
    assert name not in COMMANDS
    for called, rest in re.findall(r"spectune (\w+)([^;]*)", ANSWERS[name]):
        if called == "COMMAND":
            continue
        command = COMMANDS[called].load()
        given = {
            opt for one in (command, *getattr(command, "commands", {}).values()) for p in one.params for opt in p.opts
        }
        assert set(re.findall(r"--?[a-z][a-z-]*", rest)) <= {*given, "--help"}, (called, rest)


@pytest.mark.parametrize("command", ["profile", "plan", "validate", "run", "endpoint", "lossy", "export", "doctor"])
def test_model_is_the_target(command: str) -> None:
    (target,) = (param for param in COMMANDS[command].load().params if param.name == "target")
    assert {"--target", "--model"} <= {*target.opts}


def test_the_target_s_other_name_is_read() -> None:
    ours, theirs = (typed("validate", name, "./nowhere-at-all") for name in ("--target", "--model"))
    assert ours.exit_code == theirs.exit_code == 1
    assert ours.stderr == theirs.stderr
    assert "nowhere-at-all" in theirs.stderr


@pytest.mark.parametrize(("name", "command"), EVERY, ids=[name for name, _ in EVERY])
def test_batch_size_is_the_batch(name: str, command: click.Command) -> None:
    assert [p.opts for p in command.params if ("--batch" in p.opts) != ("--batch-size" in p.opts)] == []


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("models/small", "small"),
        ("models/small/", "small"),
        ("org/Qwen2.5-0.5B", "Qwen2.5-0.5B"),
        ("org/name@main", "name"),
        ("org/name@refs/pr/1", "name"),
        ("small.gguf", "small"),
        ("org/repo/draft-Q4.GGUF", "draft-Q4"),
    ],
)
def test_a_draft_model_is_named_after_its_folder(place: str, name: str) -> None:
    assert read("--draft-model", place) == {
        "drafters": {name: place},
        "device": "auto",
        "dtype": "auto",
        "max_memory": None,
    }


def test_a_draft_model_here_is_named_after_the_folder_that_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "small")
    assert read("--draft-model", ".", "--draft-model", "inner")["drafters"] == {"small": ".", "inner": "inner"}
    monkeypatch.chdir(tmp_path / "small" / "inner")
    assert read("--draft-model", "..")["drafters"] == {"small": ".."}


@pytest.mark.parametrize("turn", [1, -1])
def test_draft_models_and_drafters_are_given_together_in_any_order(turn: int) -> None:
    pairs = [("--drafter", "a=x"), ("--draft-model", "y/b")][::turn]
    assert read(*pairs[0], *pairs[1])["drafters"] == {"a": "x", "b": "y/b"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--draft-model", "x/a", "--draft-model", "y/a"), "'a' occurs twice"),
        (("--draft-model", "x/a", "--drafter", "a=y"), "'a' occurs twice"),
        (("--draft-model", "x/target"), "write --drafter NAME=x/target"),
        (("--draft-model", "x/lookup"), "cannot be called 'lookup'"),
        (("--draft-model", "x/a+b"), "cannot be called 'a+b'"),
        (("--draft-model", " "), "the model is empty"),
        (("--drafter", "models/small"), "--draft-model models/small"),
    ],
)
def test_a_draft_model_without_a_name_of_its_own_is_refused(given: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(echo, given)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_draft_model_is_no_more_ignored_than_a_drafter() -> None:
    result = typed("run", "--target", "./nowhere", "--prompt", "x", "--plan", "none", "--draft-model", "small")
    assert result.exit_code == 2
    assert "--draft-model is about a plan, and --plan none follows none" in result.stderr


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        *[("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32"), ("fp64", "float64"), ("half", "float16")],
        *[("BF16", "bfloat16"), ("torch.bfloat16", "bfloat16"), ("f32", "float32"), ("bfloat16", "bfloat16")],
        *[("Q4_K_M", "q4_k_m"), ("auto", "auto")],
    ],
)
def test_a_number_format_is_read_by_its_short_name(name: str, format_: str) -> None:
    assert read("--dtype", name)["dtype"] == format_


@pytest.mark.parametrize(
    ("command", "option"), [(name, p) for name, one in EVERY for p in one.params if "--dtype" in p.opts], ids=str
)
def test_every_number_format_has_short_names(command: str, option: click.Parameter) -> None:
    assert option.type.convert("bf16", option, None) == "bfloat16", command


@pytest.mark.parametrize(
    ("name", "device"),
    [("gpu", "cuda"), ("GPU", "cuda"), ("gpu:1", "cuda:1"), ("CUDA:0", "cuda:0"), ("CPU", "cpu"), ("cuda", "cuda")],
)
def test_gpu_is_cuda(name: str, device: str) -> None:
    assert read("--device", name)["device"] == device
    assert options.device_name_or_all(click.Context(echo), echo.params[0], name) == device


@pytest.mark.parametrize("name", ["gpu0", "gpu:", "gpu:x", "tpu"])
def test_another_device_is_refused(name: str) -> None:
    assert CliRunner().invoke(echo, ["--device", name]).exit_code == 2


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *[("24G", 24 * GIB), ("24g", 24 * GIB), ("24GiB", 24 * GIB), ("24Gi", 24 * GIB), ("24GB", 24 * 10**9)],
        *[("1.5G", 3 * GIB // 2), ("512M", 512 * 2**20), ("2T", 2 * 2**40), ("24 G", 24 * GIB), ("24gb", 24 * 10**9)],
        *[("8K", 8 * 2**10), ("100B", 100), ("24gib", 24 * GIB)],
    ],
)
def test_a_size_is_read_in_short(text: str, size: int) -> None:
    assert read("--max-memory", text)["max_memory"] == size


@pytest.mark.parametrize("text", ["24", "24X", "0G", "24iB", "G", "-1G", "24GG"])
def test_another_size_is_refused_with_an_example(text: str) -> None:
    result = CliRunner().invoke(echo, [f"--max-memory={text}"])
    assert result.exit_code == 2
    assert "24G or 24GiB" in result.stderr


@pytest.mark.parametrize(
    ("text", "metric", "most_ms"),
    [
        *[("tpot<=30ms", "itl", 30.0), ("TPOT <= 30 ms", "itl", 30.0), ("p90_tpot<50ms", "p90_itl", 50.0)],
        *[("itl<=30ms", "itl", 30.0), ("p90_itl<=50ms", "p90_itl", 50.0), ("mean_tpot<=2.5ms", "itl", 2.5)],
        ("tpot<=0.03s", "itl", 30.0),
    ],
)
def test_a_latency_bound_is_read_in_the_words_of_serving_engines(text: str, metric: str, most_ms: float) -> None:
    assert parse_bound(text) == LatencyBound(metric=metric, most_ms=most_ms)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["ttft<=100ms", "tpot<=30ms,p90_tpot<=50ms", "tpot<=30ms,ttft<=500ms"])
def test_another_latency_is_refused_with_those_that_are_known(text: str) -> None:
    result = typed("plan", "--target", "./nowhere", "--slo", text)
    assert result.exit_code == 2
    assert "METRIC tpot or p90_tpot" in result.stderr


@pytest.mark.parametrize("given", [("--model", "org/name"), ("--target", "org/name"), ("org/name",)])
def test_serve_says_which_command_serves_text(given: tuple[str, ...]) -> None:
    result = typed("serve", *given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "text is served by: spectune endpoint --target" in result.stderr


def test_a_plan_s_number_behind_plan_is_answered_with_show() -> None:
    result = typed("plan", "3", "--target", "./nowhere")
    assert result.exit_code == 2
    assert "spectune show plan 3" in result.stderr


def test_profile_shows_ten_basic_options_first() -> None:
    first, more = typed("profile", "-h").stdout.partition("\nOptions:\n")[2].split("\nMore options:\n")
    shown = re.findall(r"(?m)^  (--[a-z-]+)", first)
    assert len(shown) == 10
    assert shown[:4] == ["--target", "--draft-model", "--drafter", "--prompts"]
    assert "--tensor-parallel" in more and "--help" in more


@pytest.mark.parametrize(("name", "command"), EVERY, ids=[name for name, _ in EVERY])
def test_a_command_of_many_options_shows_ten_basic_ones_first(name: str, command: click.Command) -> None:
    shown = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    basic = command.basic if isinstance(command, Command) else ()
    assert len(basic) == (10 if len(shown) >= MANY else 0), name
    text = CliRunner().invoke(command, ["--help"], terminal_width=200).output
    assert [p.opts for p in shown if not any(re.search(rf"(?m)^  .*{option}\b", text) for option in p.opts)] == []
    assert ("\nMore options:\n" in text) == bool(basic)

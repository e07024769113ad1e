"""vLLM itself at work on an exported command; `vllm_exports.py` starts this in vLLM's Python, once for every command.

Nothing of spectune is imported here. What is to be decoded is read from standard input as JSON, and what the engine did
is the last line of output. The command is read by vLLM's own parser; only what a test machine needs is set beside it:
how long texts may be, how much memory keys and values take, no compilation, no cache of prefixes. The engine runs in
this process, so that its scheduler and its drafter can be watched in every step.

With `--newer-runner` it hands texts to the search for n-grams of vLLM's newer runner instead, whose kernel Triton
interprets on a CPU.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from engine_parser_child import vllm_reader

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",  # else it reports its use
}
MOST_TOKENS = 512  # of a text with its prompt
CACHE_BYTES = 2**28
SPECULATIVE = "vllm:spec_decode_"  # how the names of its counters begin
Json = dict[str, Any]  # JSON values
Engine = Any  # a class of vLLM's


def engine_of(words: Sequence[str]) -> Engine:
    """Return the engine that a command starts, as `vllm serve` would."""
    found = vllm_reader()(list(words[1:]))
    found.max_model_len, found.kv_cache_memory_bytes = MOST_TOKENS, CACHE_BYTES
    found.enforce_eager, found.enable_prefix_caching, found.disable_log_stats = True, False, False
    server = import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    made = import_module("vllm.v1.engine.llm_engine").LLMEngine.from_engine_args(
        found, usage_context=server, enable_multiprocessing=False
    )
    return made


class Watch:
    """What an engine's scheduler gave out in every step, and how often its drafter ran."""

    def __init__(self, engine: Engine) -> None:
        """Watch an engine from now on."""
        core = engine.engine_core.engine_core
        self.steps: list[Json] = []
        self.forwards = 0
        self._schedule: Callable[..., Any] = core.scheduler.schedule
        core.scheduler.schedule = self._watched
        runner = core.model_executor.driver_worker.worker.model_runner
        model = getattr(getattr(runner, "drafter", None), "model", None)
        if model is not None:
            model.register_forward_pre_hook(self._count)

    def _watched(self, *values: Any, **named: Any) -> Any:
        out = self._schedule(*values, **named)
        drafts = {name: list(tokens) for name, tokens in out.scheduled_spec_decode_tokens.items()}
        self.steps.append({"running": len(out.num_scheduled_tokens), "drafts": drafts, "kept": {}})
        return out

    def _count(self, *_: Any) -> None:
        self.forwards += 1


def decoded(engine: Engine, watch: Watch, prompts: Sequence[Sequence[int]], asked: Json) -> Json:
    """Return the texts of prompts that are decoded together, and all that was watched.

    Every step has the drafts and the number of kept tokens by request; requests are numbered as the prompts are.
    """
    module = import_module("vllm.sampling_params")
    watch.steps, watch.forwards = [], 0
    before = counters(engine)
    for index, prompt in enumerate(prompts):
        sampling = module.SamplingParams(
            temperature=asked["temperature"],
            seed=index,
            max_tokens=asked["tokens"],
            ignore_eos=True,
            detokenize=False,
            output_kind=module.RequestOutputKind.DELTA,
        )
        engine.add_request(str(index), {"prompt_token_ids": list(prompt)}, sampling)
    texts: list[list[int]] = [[] for _ in prompts]
    while engine.has_unfinished_requests():
        outputs = engine.step()
        for output in outputs:
            fresh = list(output.outputs[0].token_ids)
            texts[int(output.request_id)] += fresh
            watch.steps[-1]["kept"][output.request_id] = len(fresh)
    for step in watch.steps:  # the engine puts letters of its own behind a request's name
        step["drafts"] = {name.split("-")[0]: tokens for name, tokens in step["drafts"].items()}
    after = counters(engine)
    told = {name: after[name] - before.get(name, 0) for name in after}
    return {"texts": texts, "steps": watch.steps, "counters": told, "forwards": watch.forwards}


def counters(engine: Engine) -> dict[str, int]:
    """Return the engine's own counts of drafts, drafted and accepted tokens."""
    found = [metric for metric in engine.get_metrics() if metric.name.startswith(SPECULATIVE)]
    return {metric.name.removeprefix(SPECULATIVE): int(metric.value) for metric in found if hasattr(metric, "value")}


def searched(texts: Sequence[Sequence[int]], longest: int, shortest: int) -> list[tuple[int, int]]:
    """Return which n-gram the newer runner's kernel finds for each text: its size, and where it begins.

    A size of -1 says that it finds none.
    """
    import torch
    import triton  # both in vLLM's Python

    placeholders = import_module("vllm.triton_utils")
    placeholders.HAS_TRITON, placeholders.tl, placeholders.triton = True, triton.language, triton  # type: ignore[attr-defined]
    module = import_module("vllm.v1.worker.gpu.spec_decode.ngram.speculator")
    tokens = torch.zeros(len(texts), MOST_TOKENS, dtype=torch.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
    lengths = torch.tensor([len(text) for text in texts], dtype=torch.int32)
    ones = torch.ones(len(texts), dtype=torch.int32)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=shortest, prompt_lookup_max=longest, num_speculative_tokens=1
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=len(texts)),
        model_config=SimpleNamespace(max_model_len=MOST_TOKENS),
    )
    states = SimpleNamespace(all_token_ids=SimpleNamespace(gpu=tokens), total_len=SimpleNamespace(gpu=lengths))
    search = module.NgramGPUSpeculator(config, torch.device("cpu"), states)
    module._ngram_scan_kernel[(len(texts), search.n_blocks)](
        tokens,
        tokens.stride(0),
        torch.arange(len(texts)),
        lengths,
        ones,
        search.scratch,
        search.scratch.stride(0),
        MOST_TOKENS,
        shortest,
        longest,
        triton.next_power_of_2(longest),
        search.block_l,
    )
    best = search.scratch.max(dim=1).values - 1  # size and place in one number, the larger size first
    sizes = best // (MOST_TOKENS + 1)
    return list(zip(sizes.tolist(), (best - sizes * (MOST_TOKENS + 1)).tolist(), strict=True))


def main() -> None:
    """Decode, or search, what standard input asks for, and print what came out."""
    os.environ.update(ENVIRONMENT)
    asked: Json = json.load(sys.stdin)
    if sys.argv[1:] == ["--newer-runner"]:
        os.environ["TRITON_INTERPRET"] = "1"
        found = [searched(asked["texts"], longest, shortest) for longest, shortest in asked["sizes"]]
        print(json.dumps({"found": found}))
        return
    engine = engine_of(asked["words"])
    watch = Watch(engine)
    waves = [decoded(engine, watch, asked["prompts"][:count], asked) for count in asked["waves"]]
    print(json.dumps({"waves": waves, "most": engine.vllm_config.scheduler_config.max_num_seqs}))


if __name__ == "__main__":
    main()

"""What does every special path of a CPU pay on real models? Each is switched off and raced beside all of them.

    python benchmarks/paths.py --models FOLDER [--sets pair,smollm2] [--batches 1,4,8] [--prompts 4] [--tokens 32]

FOLDER is that of `real.py`. Both sides load the same weights in bfloat16 and decode the same prompts in turns. A path
pays where switching it off costs at least 2 % of some way of decoding. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, LlamaConfig

from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.device import detect
from spectune.runtime.batch.step_config import StepConfig
from spectune.runtime.models.config_file import OWN
from spectune.runtime.models.drafter_shapes import RECYCLING
from spectune.tuning.family import load_family
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.measuring.race import race
from spectune.tuning.request import Models
from spectune.tuning.validate import entrant

from real_sets import DRAFTER, SETS, Options, requests_for  # isort: skip
from result import commit, print_result  # isort: skip
from sweep import LOOKUP  # isort: skip

Json = dict[str, Any]
PAYS = 1.02
TURNS = 6
MODELS = "spectune.runtime.models"


def _none(*_args: object, **_named: object) -> None:
    return None


OFF: Mapping[str, Mapping[str, Callable[..., object]]] = {  # names to replace, from the outermost path inwards
    "one call of all layers": {f"{MODELS}.lean.stacked": _none},
    "one call of a layer": {f"{MODELS}.lean.stacked": _none, f"{MODELS}.anatomy.kernel_parts": _none},
    "products of ours": {f"{MODELS}.bfloat16.is_for": lambda _weight: False},
    "one call of a head's draft": {f"{MODELS}.eagle.whole_head_of": _none},
    "lookups of recycled successors": {f"{MODELS}.recycling.recycled_by_kernels": _none},
}
HEAD, RECYCLED = "head", "recycled"  # drafters beside the pair's own: random weights cost what trained ones do
DRAFT_VOCABULARY = 32_000  # of published heads, at most


def main() -> int:
    """Race every path's absence beside its presence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--sets", default="pair,smollm2")
    parser.add_argument("--batches", default="1,4,8")
    parser.add_argument("--paths", default="", help="numbers of paths, from 0; all where empty")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    asked = parser.parse_args()
    numbers = [int(one) for one in asked.paths.split(",")] if asked.paths else range(len(OFF))
    rows = [
        row
        for name in asked.sets.split(",")
        for number in numbers
        for row in _raced(name, list(OFF)[number], asked, [int(one) for one in asked.batches.split(",")])
    ]
    print_result(
        {
            "bench": "paths",
            "device": detect("cpu").label,
            "commit": commit(),
            "prompts": asked.prompts,
            "tokens": asked.tokens,
            "rows": rows,
            "pays": {path: _pays([row for row in rows if row["path"] == path]) for path in OFF},
            "holds": None,
        }
    )
    return 0


def _pays(rows: list[Json]) -> bool | None:
    """Return whether a path pays: by the median of a way's batches, since single ratios are noisy."""
    ways = {(row["set"], row["way"]) for row in rows}
    middles = [statistics.median(r["ratio"] for r in rows if (r["set"], r["way"]) == way) for way in ways]
    return max(middles) >= PAYS if middles else None


def _raced(name: str, path: str, asked: argparse.Namespace, batches: list[int]) -> Iterator[Json]:
    """Yield how much faster each way is with a path than without."""
    which = SETS[name]
    options = Options(
        models=asked.models, stores=Path(), pair=("qwen-1.5b", "qwen-0.5b"), quick=False, long_prompts=2,
        long_tokens=512, few=2, swept=2, profiles=1, prompts=32, tokens=asked.tokens, rule_prompts=2, rule_tokens=16,
    )  # fmt: skip
    models = _beside(which.models(options), path)
    families = {"with": load_family(models, dtype="bfloat16", device="cpu")}
    with _replaced(OFF[path]):
        families["without"] = load_family(models, dtype="bfloat16", device="cpu")
        for batch in batches:
            for way, setup in _setups(families["with"]).items():
                speeds = _speeds(families, setup, which, options, max(asked.prompts, batch), batch)
                ratio = speeds["with"] / speeds["without"]
                print(f"{name} batch {batch} {way}: {ratio:.3f} by {path} {speeds}", flush=True)
                yield {"set": name, "path": path, "batch": batch, "way": way, "ratio": ratio, "tokens_per_s": speeds}
    del families
    gc.collect()


def _speeds(
    families: Mapping[str, Family], setup: StepConfig, which: Any, options: Options, prompts: int, batch: int
) -> dict[str, float]:
    requests = requests_for(which, options, count=prompts, tokens=options.tokens)
    field = [entrant(name, setup, family, requests, batch) for name, family in families.items()]
    race(field, turns=TURNS, seed=batch)
    return {one.name: one.tokens_per_s for one in field}


def _setups(family: Family) -> dict[str, StepConfig]:
    found = {
        "plain": StepConfig(policy=PlainPolicy()),
        "copied": StepConfig(policy=LookupPolicy(length=5, max_ngram=3), drafter=LOOKUP),
    }
    for name in {HEAD, RECYCLED} & {*family.drafters}:
        found["chain of 3"] = StepConfig(policy=ChainPolicy(length=3), drafter=name)
        found["EAGLE-2 26/5/4"] = StepConfig(policy=Eagle2Policy(verify_tokens=26, depth=5, top_k=4), drafter=name)
        return found
    if DRAFTER in family.drafters:
        found["chain of 3"] = StepConfig(policy=ChainPolicy(length=3), drafter=DRAFTER)
        found["EAGLE-2 8/3/2"] = StepConfig(policy=Eagle2Policy(verify_tokens=8, depth=3, top_k=2), drafter=DRAFTER)
    return found


def _beside(models: Models, path: str) -> Models:
    """Return the models, or the target with the drafter that a path is for."""
    folder = Path(tempfile.mkdtemp())
    if "head" in path:
        _write_head(folder, AutoConfig.from_pretrained(models.target))
        return Models(target=models.target, drafters={HEAD: folder})
    if "recycled" in path:
        (folder / "config.json").write_text(json.dumps({OWN: {"kind": RECYCLING, "successors": 8, "target": ""}}))
        return Models(target=models.target, drafters={RECYCLED: folder})
    return models


def _write_head(folder: Path, target: Any) -> None:
    """Write an EAGLE-3 head of random weights for a target's shape."""
    hidden, inner, heads, kv = (
        target.hidden_size,
        target.intermediate_size,
        target.num_attention_heads,
        target.num_key_value_heads,
    )
    size, drafted = hidden // heads, min(DRAFT_VOCABULARY, target.vocab_size)
    shapes = {
        "fc": (hidden, 3 * hidden), "lm_head": (drafted, hidden), "midlayer.self_attn.q_proj": (hidden, 2 * hidden),
        "midlayer.self_attn.k_proj": (kv * size, 2 * hidden), "midlayer.self_attn.v_proj": (kv * size, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, hidden), "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden), "midlayer.mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    norms = ("norm", *(f"midlayer.{one}" for one in ("input_layernorm", "hidden_norm", "post_attention_layernorm")))
    tensors = {f"{name}.weight": 0.02 * torch.randn(shape) for name, shape in shapes.items()}
    tensors |= {f"{name}.weight": torch.ones(hidden) for name in norms}
    tensors["d2t"] = torch.linspace(0, target.vocab_size - 1, drafted).long() - torch.arange(drafted)
    save_file({name: one.to(torch.bfloat16) if one.is_floating_point() else one for name, one in tensors.items()},
              folder / "model.safetensors")  # fmt: skip
    last = target.num_hidden_layers
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=inner, num_attention_heads=heads, num_key_value_heads=kv, head_dim=size,
        vocab_size=target.vocab_size, num_hidden_layers=1, rms_norm_eps=target.rms_norm_eps,
    ).to_dict()  # fmt: skip
    reads = {OWN: {"reads": [2, last // 2, last - 2], "target": ""}}
    (folder / "config.json").write_text(json.dumps(config | {"draft_vocab_size": drafted} | reads))


@contextmanager
def _replaced(names: Mapping[str, Callable[..., object]]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, instead in names.items():
            stack.enter_context(patch(name, instead))
        yield


if __name__ == "__main__":
    raise SystemExit(main())

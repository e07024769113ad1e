"""The tables of docs/results.md: which benchmark's files they show, and how a file becomes rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from spectune.planner.strategies.naming import name_of

Json = dict[str, Any]
Rows = Callable[[Json], Iterable[tuple[object, ...]]]

OF_TRANSFORMERS = "transformers.generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table of the page.

    Attributes:
        kind: of the files that it shows.
        rows: of one file, without machine, day and commit.
    """

    title: str
    command: str
    about: str
    kind: str
    columns: tuple[str, ...]
    rows: Rows


def way(text: str) -> str:
    """Return a way of decoding as people say it; results name it by its code, and who drafts behind "by"."""
    code, by, drafter = text.rpartition(" by ")
    return name_of(code, drafter) if by else name_of(text)


def _off(predicted: float, measured: float) -> str:
    return f"{measured / predicted - 1.0:+.1%}".replace("%", " %")


def _real(one: Json) -> Iterator[tuple[object, ...]]:
    if "measured_tokens_per_s" not in one:
        return
    low, high = one["interval"]
    measured = one["measured_tokens_per_s"]
    rules = [rule for rule in one.get("with_rules", {}).get("rules", ()) if rule["way"] != "plain"]
    longer = {rule["way"]: rule["ratio"] for rule in (one.get("finals") or {"rules": ()})["rules"]}
    rules = [rule | {"ratio": longer.get(rule["way"], rule["ratio"])} for rule in rules]
    best = min(rules, key=lambda rule: float(rule["ratio"]), default=None)
    yield (
        *(one["cell"], one["batch"], name_of(one["policy"], one["drafter"]), one["plain_tokens_per_s"], measured),
        *(one["speedup"], _off(one["predicted_tokens_per_s"], measured), low <= measured <= high),
        None if best is None else f"{best['ratio']:.2f} of {best['name']}",
    )


def _real_sweep(one: Json) -> Iterator[tuple[object, ...]]:
    if one["cell"] == "regret-1":
        share = f"{one['share']:.1%}".replace("%", " %")
        yield way(one["plan"]), one["ways"], way(one["best"]), one["ratio"], one["profile_and_plan_s"], share


def _decode(one: Json) -> Iterator[tuple[object, ...]]:
    for cell in one["cells"]:
        speeds, plan = cell["speeds"], float(cell["speeds"]["plan"])
        beside = {name: value for name, value in cell["beside_transformers"].items() if name not in ("plain", "plan")}
        llama = max(cell.get("llamacpp", {}).values(), default=None)
        predicted = cell["predicted"]["plan"]
        yield (
            *(cell["batch"], way(cell["policy"]), speeds["plain"], plan, plan / speeds["plain"]),
            *(beside.get(OF_TRANSFORMERS), max(beside.values(), default=None), llama, predicted),
        )


def _rules(one: Json) -> Iterator[tuple[object, ...]]:
    for row in one["rows"]:
        ratios = {rule["name"]: float(rule["ratio"]) for rule in row["rules"]}
        plain = ratios.pop("plain decoding")
        best = min(ratios, key=lambda name: ratios[name])
        off = _off(row["predicted_tokens_per_s"], row["measured_tokens_per_s"])
        yield row["batch"], way(row["plan"]), row["measured_tokens_per_s"], plain, ratios[best], best, len(ratios), off


def _regret(one: Json) -> Iterator[tuple[object, ...]]:
    for row in one["rows"]:
        off = _off(row["predicted_tokens_per_s"], row["measured_tokens_per_s"])
        yield row["batch"], way(row["plan"]), len(row["sweep"]), row["ratio_to_best"], row["ratio_to_plain"], off


def _drafters(one: Json) -> Iterator[tuple[object, ...]]:
    for cell in one["cells"]:
        off = _off(cell["predicted_tokens_per_s"], cell["measured_tokens_per_s"])
        plan, best, model = way(cell["plan"]), cell["best"], cell["best_model"]
        yield cell["batch"], plan, len(cell["systems"]), best, cell["plan_over_best"], model, off


def _engines(one: Json) -> Iterator[tuple[object, ...]]:
    for row in one["rows"]:
        plan = row["plans"][-1]
        name = f"{row['engine']} {row['version']}"
        yield (
            *(name, row["concurrency"], way(plan["plan"]), row["plain_tokens_per_s"], plan["tokens_per_s"]),
            *(
                plan["of_plain"],
                plan["of_best"],
                row["settings"],
                f"{plan['error_as_promised']:+.1%}".replace("%", " %"),
            ),
        )


def _servers(one: Json) -> Iterator[tuple[object, ...]]:
    for file in one["files"]:
        guessed = [abs(row["error"]) for row in file["predictions"] if not row["ran"]]
        inside = sum(row["is_within"] for row in file["predictions"])
        for concurrency, chosen in file["chosen"].items():
            gain, low, high = file["gains"][concurrency]
            speed, plain = (file["raced"].get(f"{name} at {concurrency}") for name in (chosen, "plain"))
            yield (
                *(
                    file.get("engine") or one["engine"],
                    file["prompts"],
                    int(concurrency),
                    chosen,
                    speed,
                    plain,
                    file["share_of_best"][concurrency],
                ),
                f"{gain:.2f} ({low:.2f} to {high:.2f})",
                *(file["starts"], file["tune_s"] / file["sweep_s"], f"{max(guessed):.1%}".replace("%", " %")),
                f"{inside} of {len(file['predictions'])}",
            )


def _load(one: Json) -> Iterator[tuple[object, ...]]:
    for name, apart in one["apart"].items():
        ours, theirs = (statistics.median(run[name] for run in one["runs"][client]) for client in ("spectune", "vllm"))
        spread = f"{one['own_spread'][name]:.1%}".replace("%", " %")
        yield f"vllm {one['version']}", one["concurrency"], name, ours, theirs, _off(1.0, 1.0 + apart), spread


def _gpu(one: Json) -> Iterator[tuple[object, ...]]:
    for row in one["rows"]:
        if row.get("decoder") in ("plain", "plan"):
            predicted = row.get("predicted_tokens_per_s")
            off = None if predicted is None else _off(predicted, row["tokens_per_s"])
            limit = None if "of_the_limit" not in row else f"{row['of_the_limit']:.0%}".replace("%", " %")
            how = name_of(row["policy"], row["drafter"]) if row.get("policy") else "plain decoding"
            yield row.get("model", "demo's target, grown"), row["batch"], how, row["tokens_per_s"], limit, off


def _identity(one: Json) -> Iterator[tuple[object, ...]]:
    rows = one["rows"]
    tokens, ties, wrong = (sum(row[name] for row in rows) for name in ("tokens", "near_ties", "wrong"))
    yield one.get("dtype", "float32"), len(rows), tokens, ties, wrong


def _sampled(one: Json) -> Iterator[tuple[object, ...]]:
    ways = [row["way"] for row in one["rows"]]
    for batch, decoder in dict.fromkeys((row["batch"], row["decoder"]) for row in one["rows"]):
        times = {r["way"]: r["round_ms"] for r in one["rows"] if (r["batch"], r["decoder"]) == (batch, decoder)}
        yield batch, decoder, *(times.get(each) for each in dict.fromkeys(ways))


def _endpoint(one: Json) -> Iterator[tuple[object, ...]]:
    for row in one["rows"]:
        yield tuple(row[name] for name in ("clients", "session", "whole", "streamed", "first_piece_ms", "same_texts"))


def _chats(one: Json) -> Iterator[tuple[object, ...]]:
    for what, rows in one["rows"].items():
        last = rows[-1]
        yield what, last["prompt"], last["cached"], last["anew_ms"], last.get("spare_ms", last["cached_ms"])


def _lossy(one: Json) -> Iterator[tuple[object, ...]]:
    for row in one["rows"]:
        yield tuple(row[name] for name in ("way", "accuracy", "loss", "tokens_per_round", "tokens_per_s"))


def _shift(one: Json) -> Iterator[tuple[object, ...]]:
    for row in one["rows"]:
        yield row["traffic"], way(row["decoder"]), row["settled_tokens_per_s"]


def _edge(one: Json) -> Iterator[tuple[object, ...]]:
    for row in one["rows"]:
        speeds = [row["ways"][name]["measured"] for name in ("planned", "usual", "chains of 8")]
        off = _off(row["ways"]["planned"]["predicted"], speeds[0])
        yield row["draft_ms"], row["rtt_ms"], row["devices"], row["server_alone_tokens_per_s"], *speeds, off


def _few_rows(one: Json) -> Iterator[tuple[object, ...]]:
    for row in one["rows"]:
        if row["tokens"] in (1, 8, 64):
            yield row["tokens"], *(row.get(each) for each in FORMATS)


def _paths(one: Json) -> Iterator[tuple[object, ...]]:
    for path in one["pays"]:
        rows = [row for row in one["rows"] if row["path"] == path]
        for models, decoded in dict.fromkeys((row["set"], row["way"]) for row in rows):
            own = {row["batch"]: row["ratio"] for row in rows if (row["set"], row["way"]) == (models, decoded)}
            yield path, models, decoded, *(own.get(batch) for batch in (1, 4, 8))


def _curves(one: Json) -> Iterator[tuple[object, ...]]:
    if one["cell"] != "gpu-curves":
        return
    for row in one["rows"]:
        rule = row["best_priced_rule"]
        every = len(row["rules"]) + len(row["not_priced"])
        yield (
            *(row["curve"], row["batch"], row["plan"], row["plan_over_plain"]),
            *(row["drafter_alone"], row["drafter_alone_over_plain"]),
            *(f"{row['rules'][rule]['over_plain']:.2f} by {rule}", f"{len(row['rules'])} of {every}"),
        )


def _stacks(one: Json) -> Iterator[tuple[object, ...]]:
    if one["cell"] == "stacks-pair":
        median, worst = (f"{one[f'formula_error_{which}']:.1%}".replace("%", " %") for which in ("median", "worst"))
        yield (
            *(one["stacks"], name_of(one["best"]), one["best_tokens_per_s"], one["best_over_single"]),
            *(name_of(one["chosen"]), one["chosen_over_best"], median, worst),
        )


FORMATS = ("float32 by the library", "float32", "bfloat16 by the library", "bfloat16")
HOW, OFF = "how to decode", "measured against predicted"
SECTIONS = (
    Section(
        title="Real models",
        command="python benchmarks/real.py --models FOLDER",
        about="Qwen2.5 1.5B with the 0.5B as its draft model where the cell is called a pair; q4 is Q4_K_M.",
        kind="real",
        columns=(
            "cell",
            "batch",
            HOW,
            "plain",
            "plan",
            "x plain",
            OFF,
            "in the 90 % interval",
            "plan over best default",
        ),
        rows=_real,
    ),
    Section(
        title="Real models against a sweep",
        command="python benchmarks/real.py --models FOLDER --only regret-1",
        about="the pair at batch 1: the plan raced against all settings of a sweep's five fastest, on new prompts.",
        kind="real",
        columns=(
            HOW,
            "settings swept",
            "best of them",
            "x best of them",
            "seconds to profile and plan",
            "of the sweep's",
        ),
        rows=_real_sweep,
    ),
    Section(
        title="PREDICTION: plans on the cost curves of GPUs",
        command="python benchmarks/seeds.py --models FOLDER --only gpu-curves",
        about=(
            "what a planner would choose; nothing ran on a GPU. Costs are of other models, the acceptance is of "
            "Qwen2.5 1.5B and 0.5B on 16 texts of HumanEval. Rules whose trees the profile did not record (CAST, "
            "TALON, OPT-Tree, EAGLE) have no price. They may be faster than the plan, whose optimism is taken off."
        ),
        kind="seeds",
        columns=(
            *("curve", "batch", HOW, "x plain", "best by the drafter", "its x plain"),
            *("best priced rule, x plain", "rules priced"),
        ),
        rows=_curves,
    ),
    Section(
        title="PREDICTION: stacks of drafters",
        command="python benchmarks/seeds.py --models FOLDER --only stacks-pair",
        about=(
            "every stack of the 0.5B over copies from the text, replayed on the pair's recording at batch 1. Beside it "
            "are HSD's formula, its choice, and the best chain of the 0.5B. HSD publishes up to 1.2 x its best draft."
        ),
        kind="seeds",
        columns=(
            *("stacks", "best by replay", "its tokens/s", "x best chain", "chosen by the formula", "of the best"),
            *("formula off the replay, median", "worst"),
        ),
        rows=_stacks,
    ),
    Section(
        title="Beside transformers and llama.cpp",
        command="python benchmarks/decode.py",
        about="the plan, plain decoding, and the best of what transformers and llama.cpp offer.",
        kind="decode",
        columns=(
            "batch",
            HOW,
            "plain",
            "plan",
            "x plain",
            OF_TRANSFORMERS,
            "its best",
            "llama.cpp's best",
            "predicted",
        ),
        rows=_decode,
    ),
    Section(
        title="Published rules",
        command="python benchmarks/rules.py",
        about="the plan raced against published defaults in one decoder; above 1 the plan is faster.",
        kind="rules",
        columns=("batch", HOW, "plan", "x plain", "x best rule", "best rule", "rules", OFF),
        rows=_rules,
    ),
    Section(
        title="Against a sweep",
        command="python benchmarks/regret.py",
        about="the plan raced against the five fastest settings of a sweep.",
        kind="regret",
        columns=("batch", HOW, "settings swept", "x best of them", "x plain", OFF),
        rows=_regret,
    ),
    Section(
        title="Drafters",
        command="python benchmarks/drafters.py",
        about="the plan raced against every drafter and way of drafting alone.",
        kind="drafters",
        columns=("batch", HOW, "systems", "best system", "x best", "best draft model", OFF),
        rows=_drafters,
    ),
    Section(
        title="Other engines",
        command="python benchmarks/engines.py",
        about="a plan measured in the engine itself, beside a sweep of the engine's settings.",
        kind="engines",
        columns=("engine", "sequences", HOW, "plain", "plan", "x plain", "x best of sweep", "settings swept", OFF),
        rows=_engines,
    ),
    Section(
        title="Tuned servers",
        command="python benchmarks/servers.py",
        about="what `spectune tune` chose, raced on new prompts beside the best of a sweep.",
        kind="servers",
        columns=(
            *("engine", "prompts", "concurrency", "chosen", "its speed", "plain", "x best of sweep"),
            *("predicted gain", "starts", "time of the sweep's", "worst guess of a length", "in their intervals"),
        ),
        rows=_servers,
    ),
    Section(
        title="The load client",
        command="python benchmarks/vllm_load.py",
        about="beside `vllm bench serve`, in turns on one server of vLLM; medians of five pairs.",
        kind="vllm_load",
        columns=("server", "concurrency", "metric", "spectune", "vllm bench", "apart", "its own spread"),
        rows=_load,
    ),
    Section(
        title="GPUs",
        command="python benchmarks/gpu.py",
        about="plain decoding against the bandwidth limit, plans against their prediction.",
        kind="gpu",
        columns=("model", "batch", HOW, "tokens/s", "of the limit", OFF),
        rows=_gpu,
    ),
    Section(
        title="Is the output unchanged?",
        command="python benchmarks/identity.py",
        about="200 prompts x 64 tokens in every way of drafting; wrong tokens are not the judge's first choice.",
        kind="identity",
        columns=("format", "ways", "tokens", "near-ties", "wrong"),
        rows=_identity,
    ),
    Section(
        title="Sampled rounds",
        command="python benchmarks/sampled.py",
        about="milliseconds a round.",
        kind="sampled",
        columns=("batch", "decoder", "greedy", "temperature 0.8", "and top-p 0.9", "and top-k 20"),
        rows=_sampled,
    ),
    Section(
        title="HTTP endpoint",
        command="python benchmarks/endpoint.py",
        about="tokens/s of a session in the process itself, and behind the endpoint.",
        kind="endpoint",
        columns=("clients", "session", "whole answers", "streamed", "ms to the first piece", "same texts"),
        rows=_endpoint,
    ),
    Section(
        title="Chats that go on",
        command="python benchmarks/chats.py",
        about="milliseconds to the first token of the longest prompt, read whole and read from where it is new.",
        kind="chats",
        columns=("chats", "prompt tokens", "of them known", "read whole", "read where new"),
        rows=_chats,
    ),
    Section(
        title="Lossy rules",
        command="python benchmarks/lossy.py",
        about="accuracy on 400 problems; these outputs are not the target's own.",
        kind="lossy",
        columns=("way", "accuracy", "lost", "tokens a round", "tokens/s"),
        rows=_lossy,
    ),
    Section(
        title="When the texts change",
        command="python benchmarks/shift.py",
        about="tokens/s on texts like the profiled ones and on others.",
        kind="shift",
        columns=("texts", "decoder", "tokens/s"),
        rows=_shift,
    ),
    Section(
        title="Edge devices",
        command="python benchmarks/edge.py",
        about="devices draft and a server verifies; tokens/s.",
        kind="edge",
        columns=("ms a draft token", "round trip ms", "devices", "server alone", "plan", "usual", "chains of 8", OFF),
        rows=_edge,
    ),
    Section(
        title="A forward on a CPU",
        command="python benchmarks/few_rows.py",
        about="milliseconds of one forward of the demo's target.",
        kind="few_rows",
        columns=("tokens", *FORMATS),
        rows=_few_rows,
    ),
    Section(
        title="What special paths pay",
        command="python benchmarks/paths.py --models FOLDER",
        about="speed with a path over speed without it, on real models in bfloat16, by batch size; 1 gains nothing.",
        kind="paths",
        columns=("path", "models", HOW, "batch 1", "batch 4", "batch 8"),
        rows=_paths,
    ),
)

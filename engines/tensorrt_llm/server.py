"""TensorRT-LLM's server: one YAML file configures it; a schedule in it gives the length by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import yaml

from ...errors import MeasurementError, PlanError, RequestError
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.lookup import LookupPolicy
from ..answers import LoadResult
from ..command import value_of, without
from ..counters import CounterPage, Counts, falling
from ..load import Address
from ..schema import nearest_recorded, require_known
from ..server_engine import Lengths, ServerEngine, Source, WrittenFile, json_at, stages_of
from ..setting import DrafterForm, EngineDrafter, Schedule, Setting
from .export import EXPORT, FILE

CONFIG = ("--config", "--extra_llm_api_options", "--extra-llm-api-options")
SPECULATION = "speculative_config"
METRICS = {"return_perf_metrics": True, "perf_metrics_max_requests": 10000}  # of requests that nobody asked for yet
FORMS: Mapping[str, DrafterForm] = {"Draft_Target": "model", "DraftTarget": "model", "Eagle3": "eagle3"}
MTP = "MTP"  # layers of the target, or of a model beside it
MODEL = ("speculative_model", "speculative_model_dir")
LENGTHS = (  # chosen anew
    *("max_draft_len", "num_nextn_predict_layers", "max_total_draft_tokens", "draft_len_schedule", "max_concurrency"),
)
OTHERS = ("use_dynamic_tree", "eagle_choices", "use_mtp_vanilla")  # trees, and layers of which each drafts one token
NGRAM = 3  # tokens of the longest n-gram that is searched
DRAFTED, ACCEPTED, ROUNDS = "drafted", "accepted", "rounds"
CHECKED, PARSED = "run on a scripted server alone", "parsed only"


class TensorRTLLMServer(ServerEngine):
    """`trtllm-serve`.

    `/perf_metrics` tells every request once: its drafted and accepted tokens, and the steps it took part in. It tells
    no positions.
    """

    name = "tensorrt-llm"
    takes_table = True
    longest_first = True
    example = "trtllm-serve MODEL"

    def plain(self, command: Sequence[str]) -> list[str]:
        """Return a command whose file has no drafts, and shows counters."""
        return self._with(command, {name: value for name, value in _config(command).items() if name != SPECULATION})

    def counted(self, command: Sequence[str]) -> list[str]:
        """Return a command whose file shows counters; all else stays."""
        return self._with(command, _config(command))

    def sources(
        self, command: Sequence[str], drafters: Sequence[EngineDrafter], longest: int, version: str
    ) -> tuple[Source, ...]:
        """Return draft models, the draft model or head of the command's own file, and n-grams."""
        known = nearest_recorded(self.name, version)
        chain = ChainPolicy(length=longest)
        settings: list[tuple[str, Setting | str, Mapping[str, Any]]] = [
            (drafter.name, EXPORT.setting(chain, drafter, known), {}) for drafter in drafters
        ]
        settings += _own(_config(command).get(SPECULATION), longest, known)
        lookup = LookupPolicy(length=longest, max_ngram=NGRAM, min_ngram=1)
        settings.append(("n-grams", EXPORT.setting(lookup, None, known), {}))
        return tuple(
            Source(
                name=name,
                is_model=setting.method in (MTP, *FORMS),
                setting=setting,
                checked=PARSED if setting.method == MTP else CHECKED,
                kept=kept,
            )
            for name, setting, kept in settings
            if isinstance(setting, Setting)
        )

    def flags(self, source: Source, lengths: Lengths, version: str) -> tuple[str, ...]:
        """Return the speculative part of the file, which `joined` puts into the command's."""
        known = nearest_recorded(self.name, version)
        stages = stages_of(lengths)
        setting = replace(source.setting, length=max(lengths.values()))
        if stages[0].length < setting.length:
            raise PlanError("TensorRT-LLM's schedule begins with its longest length; take one for all batches")
        written = EXPORT.written(Schedule(setting=setting, stages=stages, most_batch=max(lengths)), "", known)
        require_known(self.name, known, written.options)
        drafts = {**yaml.safe_load(dict(written.files)[FILE])[SPECULATION], **source.kept}
        return (CONFIG[0], WrittenFile.of(FILE, _written({SPECULATION: drafts})))

    def joined(self, plain: Sequence[str], flags: Sequence[str]) -> list[str]:
        """Return a plain command with drafts: both files are one."""
        configs = [yaml.safe_load(word.text) for word in (*plain, *flags) if isinstance(word, WrittenFile)]
        whole = {name: value for config in configs for name, value in config.items()}
        return [*without(plain, CONFIG), CONFIG[0], WrittenFile.of(FILE, _written(whole))]

    def page(self, address: Address) -> CounterPage:
        """Return sums over the requests that ended since the last page, as TensorRT-LLM forgets what it has sent."""
        records = [one["perf_metrics"] for one in json_at(address, "/perf_metrics") or () if "perf_metrics" in one]
        drafts = [(one["speculative_decoding"], one) for one in records if one.get("speculative_decoding")]
        return {
            ("requests", ()): float(len(records)),
            (DRAFTED, ()): float(sum(told["total_draft_tokens"] for told, _ in drafts)),
            (ACCEPTED, ()): float(sum(told["total_accepted_draft_tokens"] for told, _ in drafts)),
            (ROUNDS, ()): float(sum(one.get("last_iter", 0) - one.get("first_iter", 0) for _, one in drafts)),
        }

    def counts(self, after: CounterPage, before: CounterPage, load: LoadResult, model: str) -> Counts:
        """Return the counts of the later page; acceptance by position is taken to fall by one factor."""
        if after["requests", ()] < len(load.ended):
            raise MeasurementError(
                f"/perf_metrics tells of {after['requests', ()]:.0f} requests, and {len(load.ended)} were sent; let "
                "the server's YAML say return_perf_metrics: true and perf_metrics_max_requests: 10000"
            )
        drafted, accepted = after[DRAFTED, ()], after[ACCEPTED, ()]
        rounds = after[ROUNDS, ()] or max(load.tokens - len(load.ended) - accepted, 0.0)
        if not drafted or not rounds:
            return Counts()
        shares = falling(accepted / rounds, max(1, round(drafted / rounds)))
        return Counts(
            drafts=rounds, drafted=drafted, accepted=accepted, by_position=tuple(rounds * share for share in shares)
        )

    def _with(self, command: Sequence[str], config: Mapping[str, Any]) -> list[str]:
        return [*without(command, CONFIG), CONFIG[0], WrittenFile.of(FILE, _written({**config, **METRICS}))]


def _written(config: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(config), sort_keys=False))


def _config(command: Sequence[str]) -> Mapping[str, Any]:
    """Return what a command's file says; RequestError where it cannot be read, or is no mapping."""
    place = value_of(command, CONFIG)
    if place is None:
        return {}
    try:
        found = yaml.safe_load(Path(place).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RequestError(f"cannot read {place} of the command ({error}); give a YAML file of TensorRT-LLM") from error
    if not isinstance(found or {}, dict):
        raise RequestError(f"{place} holds {type(found).__name__}; write options, as option: value")
    return found or {}


def _own(block: Any, longest: int, version: str) -> list[tuple[str, Setting | str, Mapping[str, Any]]]:
    """Return the name and setting of a speculative configuration's drafts, and what stays whatever their length.

    None of n-grams, which are tried anyway; RequestError where its length cannot be chosen.
    """
    if not block:
        return []
    told = block if isinstance(block, dict) else {}
    method, model = str(told.get("decoding_type")), next((told[one] for one in MODEL if one in told), None)
    if method == "NGram":
        return []
    if method not in (MTP, *FORMS) or (method != MTP and not model) or any(told.get(one) for one in OTHERS):
        raise RequestError(
            f"how the drafts of the command's {SPECULATION} take a length is not known here: decoding_type "
            f"{method}, speculative_model {model}; leave it out, or give a chain of {', '.join(FORMS)} with its "
            f"model, or of {MTP}"
        )
    kept = {name: value for name, value in told.items() if name not in ("decoding_type", *LENGTHS)}
    if method == MTP:
        layers = Setting(
            method=MTP, drafter=None, knobs=(), length=longest, by_batch=True, off="any", longest_first=True
        )
        return [(MTP, layers, kept)]
    drafter = EngineDrafter(name=PurePath(str(model)).name, path=str(model), form=FORMS[method])
    setting = EXPORT.setting(ChainPolicy(length=longest), drafter, version)
    return [(drafter.name, setting, {name: value for name, value in kept.items() if name not in MODEL})]


SERVER = TensorRTLLMServer()

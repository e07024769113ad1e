"""What quantization_config says of weights, as bits per number of each part, scales and zero points included.

Methods are those of transformers and vLLM; another one is named, and its bits are not guessed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import lru_cache
from typing import Any

from ...errors import ModelError
from .architecture import Architecture
from .stored import AS_MULTIPLIED, StoredPart, StoredWeights

Config = Mapping[str, Any]
SCALE_BITS = 16  # of a group's scale, unless the format says otherwise
CLASSES = ("Linear", "FusedMoE", "MoEGMM")  # targets that mean every matrix
UNCOUNTED = "{told}; the bits of its weights are not known here, so nothing can be estimated from them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a matrix is stored: bits of a number, and the format of its products where activations are quantised."""

    bits: float
    arithmetic: str = ""

    def __post_init__(self) -> None:
        if not 1.0 <= self.bits <= 64.0:
            raise ModelError(f"a quantised weight of {self.bits} bits; check quantization_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisationRule:
    """The modules that a scheme is for; None leaves them unquantised."""

    names: tuple[str, ...]
    scheme: Scheme | None
    _literal: frozenset[str] = field(init=False, repr=False, compare=False)
    _patterns: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [name.replace("language_model.", "") for name in self.names]
        patterns = [name for name in names if name.startswith("re:") or re.search(r"[*?\[\]\\^$|]", name)]
        object.__setattr__(self, "_literal", frozenset(names) - frozenset(patterns))
        object.__setattr__(self, "_patterns", tuple(_compiled(name) for name in patterns))

    def holds(self, matrix: Matrix) -> bool:
        """Whether a matrix is meant: by its name, by a module that it is in, or by its class."""
        if not self._literal.isdisjoint(matrix.parts) or not self._literal.isdisjoint(CLASSES):
            return True
        return any(pattern.match(name) for pattern in self._patterns for name in matrix.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix of a model."""

    part: str  # a field of StoredWeights
    numbers: int
    parts: frozenset[str]  # every run of components of its names


def stored_weights(architecture: Architecture, config: Config) -> StoredWeights:
    """Return how an architecture's weights are stored by its config.json; unquantised where it says nothing."""
    told = _quantization(config)
    if not told:
        return AS_MULTIPLIED
    method = _method(told)
    try:
        rules = METHODS[method](told) if method in METHODS else None
        if rules is None:
            return StoredWeights(method=method, uncounted=UNCOUNTED.format(told=f"weights are quantised by {method!r}"))
        found = [(matrix, _scheme(matrix, rules)) for matrix in matrices(architecture)]
        return _stored(method, found)
    except (ModelError, TypeError, ValueError, AttributeError, re.error) as error:
        return StoredWeights(
            method=method,
            uncounted=UNCOUNTED.format(told=f"quantization_config of {method!r} cannot be read ({error})"),
        )


def _quantization(config: Config) -> Config:
    text = config.get("text_config")
    places = (config, text if isinstance(text, Mapping) else {})
    found = (place.get(name) for place in places for name in ("quantization_config", "compression_config"))
    return next((each for each in found if isinstance(each, Mapping) and each), {})


def _method(told: Config) -> str:
    method = told.get("quant_method")
    if method is None and "config_groups" in told:
        method = "compressed-tensors"
    if method is None and ("quant_algo" in told or "quantization" in told):
        method = "modelopt"
    if method is None and any(name.startswith(("load_in_", "_load_in_", "bnb_")) for name in told):
        method = "bitsandbytes"
    return str(method).lower().replace("_", "-").removeprefix("intel/")


def matrices(architecture: Architecture) -> Iterator[Matrix]:
    """Yield the matrices of an architecture by the names that its families give them; routers are never quantised."""
    for layer in range(architecture.layers):
        within = f"model.layers.{layer}"
        for name, numbers in architecture.attention_matrices:
            yield _matrix("attention", f"{within}.self_attn.{name}", numbers)
        if layer < architecture.dense_layers or not architecture.experts:
            inner = architecture.dense_intermediate if architecture.experts else architecture.intermediate
            yield from _mlp("dense", f"{within}.mlp", architecture, inner)
            continue
        yield from _mlp("experts", f"{within}.mlp.experts.0", architecture, architecture.intermediate)
        if architecture.shared_intermediate:
            yield from _mlp("shared", f"{within}.mlp.shared_experts", architecture, architecture.shared_intermediate)
    if not architecture.is_tied:
        yield _matrix("head", "lm_head", architecture.vocabulary * architecture.hidden)


def _mlp(part: str, within: str, architecture: Architecture, inner: int) -> Iterator[Matrix]:
    for name in ("gate_proj", "up_proj", "down_proj") if architecture.is_gated else ("up_proj", "down_proj"):
        yield _matrix(part, f"{within}.{name}", architecture.hidden * inner)


ALIASES = (
    (r"\.mlp\.", ".block_sparse_moe."),
    (r"\.mlp\.", ".feed_forward."),
    (r"shared_experts", "shared_expert"),
    (r"\b[qkv]_proj$", "qkv_proj"),
    (r"\b(gate|up)_proj$", "gate_up_proj"),
    (r"\bgate_proj$", "w1"),
    (r"\bup_proj$", "w3"),
    (r"\bdown_proj$", "w2"),
)


def _matrix(part: str, name: str, numbers: int) -> Matrix:
    names = {name}
    for pattern, other in ALIASES:
        names |= {re.sub(pattern, other, known) for known in names}
    runs = {run for each in names for run in _runs(each)}
    return Matrix(part=part, numbers=numbers, parts=frozenset(runs))


@lru_cache(maxsize=4096)
def _runs(name: str) -> frozenset[str]:
    """Return every run of dotted components, and the whole name with a dot behind each module it is in."""
    parts = name.split(".")
    ends = range(1, len(parts) + 1)
    return frozenset(".".join(parts[start:end]) for end in ends for start in range(end))


def _compiled(name: str) -> re.Pattern[str]:
    if name.startswith("re:"):
        return re.compile(f"(?:{name[3:]})")
    is_regex = bool(re.search(r"[\\^$|]|\.\*", name)) and not name.startswith("*")
    return re.compile(name if is_regex and not re.search(r"[^.]\*", name) else translate(name))


def _scheme(matrix: Matrix, rules: Iterable[QuantisationRule]) -> Scheme | None:
    return next((rule.scheme for rule in rules if rule.holds(matrix)), None)


def _stored(method: str, found: Iterable[tuple[Matrix, Scheme | None]]) -> StoredWeights:
    total, stored, narrow, bits = (defaultdict[str, float](float) for _ in range(4))
    formats = set()
    for matrix, scheme in found:
        total[matrix.part] += matrix.numbers
        if scheme is None:
            continue
        stored[matrix.part] += matrix.numbers
        bits[matrix.part] += matrix.numbers * scheme.bits
        if scheme.arithmetic:
            narrow[matrix.part] += matrix.numbers
            formats.add(scheme.arithmetic)
    if len(formats) > 1:
        raise ModelError(f"activations are quantised to several formats, {', '.join(sorted(formats))}")
    parts = {
        part: StoredPart(
            share=stored[part] / total[part],
            bits=bits[part] / stored[part],
            narrow_share=narrow[part] / total[part],
        )
        for part in stored
    }
    return replace(StoredWeights(method=method, arithmetic=next(iter(formats), "")), **parts)  # type: ignore[arg-type]


def _unquantised(told: Config, *more: str) -> QuantisationRule:
    keys = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "exclude", "skip_modules")
    named = [name for key in (*keys, "llm_int8_skip_modules") for name in told.get(key) or ()]
    return QuantisationRule(names=(*named, *more), scheme=None)


def _everywhere(told: Config, scheme: Scheme, *, quantises_head: bool = False) -> list[QuantisationRule]:
    return [
        _unquantised(told, *(() if quantises_head else ("lm_head",))),
        QuantisationRule(names=("Linear",), scheme=scheme),
    ]


def _grouped(bits: float, group: int | None, beside: float) -> float:
    """Return the bits of a number whose group has so many more beside it; one group per row has too few to count."""
    return bits + (beside / group if group and group > 0 else 0.0)


def _fp8(told: Config) -> list[QuantisationRule]:
    block = told.get("weight_block_size") or ()
    numbers = 1
    for length in block:
        numbers *= int(length)
    return _everywhere(told, Scheme(bits=_grouped(8.0, numbers if block else None, 32.0), arithmetic="float8"))


def _packed(told: Config) -> list[QuantisationRule]:
    """Return the rules of GPTQ, AWQ and AutoRound, whose integers have a scale and a zero point per group."""
    bits = _first(told, "bits", "w_bit", "wbits")
    group = _first(told, "group_size", "q_group_size", or_else=-1)
    scheme = _integers(bits, group, has_zero=told.get("zero_point", True))
    rules = [_unquantised(told, *(() if told.get("lm_head") else ("lm_head",)))]
    for pattern, change in (told.get("dynamic") or {}).items():
        name = f"re:{pattern.removeprefix('-:').removeprefix('+:')}"
        own = {"bits": bits, "group_size": group, **(change or {})}
        dropped = pattern.startswith("-:")
        rules.append(
            QuantisationRule(names=(name,), scheme=None if dropped else _integers(own["bits"], own["group_size"]))
        )
    for name, change in (told.get("extra_config") or {}).items():
        own = {"bits": bits, "group_size": group, **change}
        kept = None if own["bits"] >= 16 else _integers(own["bits"], own["group_size"])
        rules.append(QuantisationRule(names=(name,), scheme=kept))
    return [*rules, QuantisationRule(names=("Linear",), scheme=scheme)]


def _integers(bits: float, group: int, *, has_zero: bool = True) -> Scheme:
    return Scheme(bits=_grouped(float(bits), int(group), SCALE_BITS + (bits if has_zero else 0)))


def _first(told: Config, *names: str, or_else: Any = None) -> Any:
    found = next((told[name] for name in names if told.get(name) is not None), or_else)
    if found is None:
        raise ModelError(f"it lacks {' or '.join(names)}")
    return found


def _compressed(told: Config) -> list[QuantisationRule]:
    sparsity = told.get("sparsity_config") or {}
    if sparsity.get("format", "dense") != "dense" or told.get("format") == "marlin-24":
        raise ModelError("sparse weights are not counted")
    groups = told.get("config_groups") or {}
    rules = [_unquantised(told)]
    for group in groups.values():
        own = group.get("format") or told.get("format") or ""
        scheme = None if own == "dense" else _group_scheme(group.get("weights"), group.get("input_activations"))
        rules.append(QuantisationRule(names=tuple(group.get("targets") or ("Linear",)), scheme=scheme))
    if len(rules) == 1:
        raise ModelError("it has no config_groups")
    return rules


def _group_scheme(weights: Config | None, activations: Config | None) -> Scheme | None:
    if not weights:
        return None
    bits, is_float = float(weights["num_bits"]), weights.get("type") == "float"
    block = weights.get("block_structure")
    group = weights.get("group_size")
    if isinstance(block, list | tuple):
        group = int(block[0]) * int(block[1])
    scale = 8 if is_float and bits == 4 else SCALE_BITS  # NVFP4 and MXFP4
    zero = 0 if is_float or weights.get("symmetric", True) else bits
    arithmetic = ""
    if activations and activations.get("num_bits"):
        arithmetic = f"{'float' if activations.get('type') == 'float' else 'int'}{activations['num_bits']}"
    return Scheme(bits=_grouped(bits, group, scale + zero), arithmetic=arithmetic)


ALGORITHMS: Mapping[str, tuple[float, float, int, str]] = {  # ModelOpt: bits, bits beside a group, its size, products
    "FP8": (8, 0, 0, "float8"),
    "FP8_PER_CHANNEL_PER_TOKEN": (8, 0, 0, "float8"),
    "FP8_PB_WO": (8, 32, 128 * 128, "float8"),
    "MXFP8": (8, 8, 32, "float8"),
    "NVFP4": (4, 8, 16, "float4"),
    "NVFP4_AWQ": (4, 8, 16, "float4"),
    "W4A16_NVFP4": (4, 8, 16, ""),
    "MXFP4": (4, 8, 32, "float4"),
    "W4A16_AWQ": (4, 16, 128, ""),
    "W4A8_AWQ": (4, 16, 128, "float8"),
    "W8A16": (8, 0, 0, ""),
    "INT8_SQ": (8, 0, 0, "int8"),
    "W8A8_SQ_PER_CHANNEL": (8, 0, 0, "int8"),
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": (8, 0, 0, "int8"),
}


def _modelopt(told: Config) -> list[QuantisationRule]:
    told = told.get("quantization") or told
    if "quant_algo" not in told and "config_groups" in told:
        return _compressed(told)
    if str(told.get("quant_algo")).upper() == "MIXED_PRECISION":
        named = told.get("quantized_layers") or {}
        return [
            _unquantised(told),
            *(QuantisationRule(names=(name,), scheme=_algorithm(own)) for name, own in named.items()),
        ]
    return _everywhere(told, _algorithm(told), quantises_head=True)


def _algorithm(told: Config) -> Scheme:
    name = str(told.get("quant_algo")).upper()
    if name not in ALGORITHMS:
        raise ModelError(f"its quant_algo is {told.get('quant_algo')!r}")
    bits, beside, usual, arithmetic = ALGORITHMS[name]
    group = told.get("group_size") or usual if usual else None
    return Scheme(bits=_grouped(bits, group, beside), arithmetic=arithmetic)


def _bitsandbytes(told: Config) -> list[QuantisationRule]:
    if told.get("load_in_8bit") or told.get("_load_in_8bit"):
        return _everywhere(told, Scheme(bits=8.0, arithmetic="int8"))
    if not (told.get("load_in_4bit") or told.get("_load_in_4bit")):
        raise ModelError("it has neither load_in_4bit nor load_in_8bit")
    block = int(told.get("bnb_4bit_blocksize") or 64)
    scale = 8 + 32 / 256 if told.get("bnb_4bit_use_double_quant") else 32
    return _everywhere(told, Scheme(bits=_grouped(4.0, block, scale)))


def _mxfp4(told: Config) -> list[QuantisationRule]:
    return [_unquantised(told), QuantisationRule(names=("mlp.experts",), scheme=Scheme(bits=4 + 8 / 32))]


def _torchao(told: Config) -> list[QuantisationRule]:
    asked = told.get("quant_type", told.get("quant_type_kwargs"))
    if isinstance(asked, Mapping) and "default" in asked:
        asked = asked["default"]
    named = dict[str, Any]()
    if isinstance(asked, Mapping) and "fqn" in str(asked.get("_type", "")).lower():
        named = dict(next(iter(asked.get("_data", {}).values())))
        asked = named.pop("_default", None)
    rules = [
        QuantisationRule(names=(name,), scheme=None if own is None else _torchao_scheme(own, {}))
        for name, own in named.items()
    ]
    usual = told.get("quant_type_kwargs") or {}
    default = [] if asked is None else _everywhere(told, _torchao_scheme(asked, usual))
    return [*rules, *default]


def _torchao_scheme(asked: Any, more: Config) -> Scheme:
    data = asked.get("_data") or {} if isinstance(asked, Mapping) else more
    name = str(asked.get("_type") if isinstance(asked, Mapping) else asked).lower().replace("_", "")
    weight = re.search(r"(uint|int|nvfp|mxfp|float)(\d)weight|(nvfp|mxfp)(\d)", name)
    if weight is None:
        raise ModelError(f"its quant_type is {asked!r}")
    kind, bits = (weight[1] or weight[3]), float(weight[2] or weight[4])
    activation = re.search(r"(int|float)(\d)dynamicactivation|dynamicactivation(int|float)(\d)", name)
    arithmetic = f"{activation[1] or activation[3]}{activation[2] or activation[4]}" if activation else ""
    if kind in ("nvfp", "mxfp"):
        return Scheme(bits=_grouped(bits, 16 if kind == "nvfp" else 32, 8), arithmetic=arithmetic)
    group = data.get("group_size") or (128 if bits == 4 else -1)
    beside = SCALE_BITS * (2 if bits == 4 and not arithmetic else 1)
    return Scheme(bits=_grouped(bits, int(group) if isinstance(group, int) else -1, beside), arithmetic=arithmetic)


def _hqq(told: Config) -> list[QuantisationRule]:
    asked = told.get("quant_config") or told
    if "weight_quant_params" in asked:
        asked = {"Linear": asked["weight_quant_params"]}
    rules = [_unquantised(told, "lm_head")]
    for name, own in asked.items():
        own = own.get("weight_quant_params", own)
        scheme = Scheme(bits=_grouped(float(own["nbits"]), own.get("group_size"), 2 * SCALE_BITS))
        rules.append(QuantisationRule(names=(name,), scheme=scheme))
    return rules


def _named_weights(told: Config) -> list[QuantisationRule]:
    name = str(told.get("weights", "int8"))
    found = re.fullmatch(r"q?u?(int|float)(\d)\w*", name)
    if found is None:
        raise ModelError(f"its weights are {name!r}")
    return _everywhere(told, Scheme(bits=float(found[2])))


def _bitnet(told: Config) -> list[QuantisationRule]:
    return _everywhere(told, Scheme(bits=2.0, arithmetic="int8"))


METHODS: Mapping[str, Callable[[Config], list[QuantisationRule]]] = {
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "gptq": _packed,
    "gptqmodel": _packed,
    "awq": _packed,
    "auto-round": _packed,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "modelopt-mixed": _modelopt,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "torchao": _torchao,
    "hqq": _hqq,
    "quanto": _named_weights,
    "eetq": _named_weights,
    "bitnet": _bitnet,
}

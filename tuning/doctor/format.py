"""The format of a drafter's files, and of what version; adapters."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import ModelError
from ...profiler.gguf_file import is_gguf, read_gguf
from ...profiler.identity import require_no_adapter
from ...runtime.models.config_file import is_dflash
from ...runtime.models.eagle_shape import LAYER
from ...runtime.models.formats import require_known_format
from .finding import DrafterFinding
from .pair import Pair

FORMS = {"eagle": "EAGLE-1", "eagle3": "EAGLE-3"}
BESIDE = {"block": "a block drafter of spectune train", "self": "an exit drafter of spectune train"}


def check_format(pair: Pair) -> Iterator[DrafterFinding]:
    """Yield the format; what is no drafter that can be read is broken."""
    for check, require in (("adapter", require_no_adapter), ("format", require_known_format)):
        try:
            require(pair.drafter)
        except ModelError as error:
            seen, _, advice = str(error).partition("; ")
            yield DrafterFinding(check=check, seen=seen, severity="broken", advice=advice)
            return
    yield DrafterFinding(check="format", seen=", ".join(part for part in (_format(pair), _version(pair)) if part))


def _format(pair: Pair) -> str:
    if is_gguf(pair.drafter):
        file = read_gguf(pair.drafter)
        return f"GGUF, a language model of family {file.family}"
    if pair.role == "head":
        names = "SafeAILab" if pair.head.begins == LAYER[pair.head.form] else "ModelOpt and vLLM"
        return f"a head of form {FORMS[pair.head.form]}, tensors named as {names} names them"
    if is_dflash(pair.written):
        return "a DFlash drafter as its authors publish them"
    if pair.role != "draft":
        return BESIDE[pair.role]
    return f"safetensors, a language model of type {pair.drafter_config.model_type}"


def _version(pair: Pair) -> str:
    version = pair.written.get("transformers_version")
    return f"written by transformers {version}" if isinstance(version, str) else ""

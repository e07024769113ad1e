"""What people call commands elsewhere, and the command that does it here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

START = "spectune demo shows everything on small models; then: spectune profile --target MODEL"
PROFILE = "measure your models with: spectune profile --target MODEL"
PLAN = "spectune profile --target MODEL measures; then spectune plan --target MODEL finds the fastest settings"
WHAT_IF = "for a device that is not here: spectune profile --target MODEL --estimate DEVICE"
VALIDATE = "measure a plan against plain decoding with: spectune validate --target MODEL"
RUN = "decode one prompt with: spectune run --target MODEL --prompt TEXT"
CHAT = "ask one question with: spectune run --target MODEL --chat --prompt TEXT; serve chats with: spectune endpoint"
ENDPOINT = "serve text over OpenAI's API with: spectune endpoint --target MODEL"
EXPORT = "write a plan as an engine's settings with: spectune export --engine vllm"
SHOW = "show a plan with: spectune show plan 3"
EXPLAIN = "explain a plan with: spectune plan --target MODEL --explain"
LIST = "list the store with: spectune list"
REPORT = (
    "draw a plan with: spectune show plan --plot plan.html; write all as a page with: spectune report -o report.html"
)
DOCTOR = "check this device and versions with: spectune doctor"
ADVISE = "read a running server's counters with: spectune advise FILE"
WATCH = "see whether servers keep their plan with: spectune watch URL --plan 3"
RETIRE = "take a plan out of use with: spectune retire 3; prune the store with: spectune db prune"
TRAIN = "train a drafter with: spectune train eagle --target MODEL --data FILE -o DIR"
CONVERT = "write a model in an engine's form with: spectune convert MODEL --engine llama.cpp"
HELP = "see the commands with: spectune --help; the options of one with: spectune COMMAND --help"
VERSION = "see the version with: spectune --version"

ANSWERS: Mapping[str, str] = {
    name: answer
    for answer, names in {
        START: "start init setup quickstart example examples tutorial try",
        PROFILE: "measure record calibrate calibration analyze analyse probe time latency trace acceptance",
        PLAN: "autotune auto-tune auto sweep search optimize optimise solve recommend choose select best grid",
        WHAT_IF: "estimate simulate predict what-if whatif",
        VALIDATE: "bench benchmark benchmarks bench-serving perf throughput compare race eval evaluate test verify",
        RUN: "generate gen complete completion completions decode infer inference predict-text prompt sample stream",
        CHAT: "chat ask talk repl",
        ENDPOINT: "server api openai openai-server serve-model http web gateway launch-server launch_server",
        EXPORT: "deploy config configure settings write launch flags vllm sglang llama-server tensorrt-llm trtllm",
        SHOW: "view cat inspect describe print get",
        EXPLAIN: "explain why",
        LIST: "ls plans history profiles models",
        REPORT: "plot graph chart draw html dashboard ui",
        DOCTOR: "check info env status diagnose device devices hardware collect-env self-test selftest",
        ADVISE: "metrics counters advice",
        WATCH: "monitor observe tail",
        RETIRE: "rm remove delete drop uninstall clean reset clear disable",
        TRAIN: "finetune fine-tune fit distill distil learn",
        CONVERT: "quantize quantise gguf transform pack",
        HELP: "help man usage commands",
        VERSION: "version",
    }.items()
    for name in names.split()
}


def answer(name: str, known: Collection[str]) -> str:
    """Return what is said of an unknown command: which of those known does it, or is spelled nearly so."""
    typed = name.lower()
    if typed in ANSWERS:
        return f"there is no command {name!r}; {ANSWERS[typed]}"
    if typed in known:
        return f"there is no command {name!r}; write it in small letters: {typed}"
    near = get_close_matches(typed, [*known, *ANSWERS], n=1, cutoff=0.75)
    if near and near[0] in known:
        return f"there is no command {name!r}; did you mean {near[0]}?"
    if near:
        return f"there is no command {name!r}; {ANSWERS[near[0]]}"
    return f"there is no command {name!r}; {HELP}"

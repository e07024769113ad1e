"""The group behind `spectune`: commands load late, errors of ours are one line."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

import click

from ..errors import NotInstalledError, SpectuneError
from .commands import LazyCommand
from .report import Settings

INTERRUPTED = 130  # what a shell reports for a process ended by Ctrl-C: 128 + SIGINT


class LazyGroup(click.Group):
    """Imports a command's module only when that command is used; `groups` are commands by name, by their title.

    A SpectuneError becomes one line on stderr and exit code 1, as does a missing package of the extra `run`; Ctrl-C
    becomes exit code 130. Any other exception is a bug and keeps its traceback.
    """

    # Any: click types both the options it passes on and the result of a command so.
    def __init__(self, *args: Any, groups: Mapping[str, Mapping[str, LazyCommand]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.groups = groups
        self.table = {name: entry for group in groups.values() for name, entry in group.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command's name, in the table's order."""
        return [*self.table, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the named command, importing its module, or None where there is none."""
        entry = self.table.get(cmd_name)
        return entry.load() if entry else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was typed; of an unknown one say which does the same here."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(answer(name, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands group by group; the table's lines are written without importing them."""
        groups = {title: [(name, entry.help) for name, entry in group.items()] for title, group in self.groups.items()}
        if self.commands:
            groups["Other"] = [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        width = max((len(name) for rows in groups.values() for name, _ in rows), default=0)
        formatter.write("\nCommands:\n")
        for title, rows in groups.items():
            formatter.write(f" {title}:\n")
            with formatter.indentation():
                formatter.write_dl([(name.ljust(width), line) for name, line in rows])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # here a closed pipe still meets click's handler, at exit it would print a warning
        except (SpectuneError, ModuleNotFoundError) as error:
            known = error if isinstance(error, SpectuneError) else NotInstalledError.of(error)
            if known is None:
                raise
            if isinstance(ctx.obj, Settings) and ctx.obj.verbose:
                traceback.print_exception(error)
            raise click.ClickException(" ".join(str(known).split())) from error
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        return result


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

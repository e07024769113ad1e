"""An engine's own parser at work on what was exported for it; `engine_parsers.py` starts this in that engine's Python.

Nothing of spectune is imported here. Cases are read from standard input as JSON, and the verdicts are its last line of
output. Every case is parsed in a process of its own, in the folder that holds its files: what one leaves behind, or how
it ends the process, does not touch the next. A module that is not imported for real is named in `stubbed`.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

Parser = Callable[[list[str]], None]  # words behind the program's name; the files lie in the working folder
SGLANG_STUBS = ("torchvision", "sgl_kernel", "flashinfer")  # GPU kernels, and the decoding of pictures
PROGRAMS = range(24)  # numbers by which llama.cpp may know its server
MOST_SEQUENCES = 1024  # of a server: how far a table by batch goes
VLLM_STUBS = ("arctic_inference",)  # drafts by suffixes; the parser only asks whether it is there


class Inert:
    """Stands for anything of a stubbed module."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *values: Any, **named: Any) -> Any:  # Any: it stands for anything
        """Return what it decorates, or another inert thing."""
        return values[0] if len(values) == 1 and callable(values[0]) and not named else Inert()

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()


class InertModule(types.ModuleType):
    """A module whose every name is inert."""

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that are stubbed, and what is below them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """Return a specification of an inert module."""
        is_stubbed = fullname.split(".")[0] in self.names
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_stubbed else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return an inert module."""
        return InertModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run nothing."""


def sglang_parser() -> Parser:
    """Return SGLang's own: its flags, everything its arguments check before a server starts, and the adaptive file."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    import_module("transformers").AutoProcessor  # noqa: B018  it looks for torchvision before that is stubbed
    sys.meta_path.append(Stubs(SGLANG_STUBS))
    prepare_server_args = import_module("sglang.srt.server_args").prepare_server_args

    def parse(words: list[str]) -> None:
        arguments = prepare_server_args(words[2:])  # behind -m sglang.launch_server
        if hasattr(arguments, "resolve_once"):  # newer versions check arguments after they were read
            arguments.resolve_once()
        if "--max-running-requests" in words:
            asked = int(words[words.index("--max-running-requests") + 1])
            held = _resolved(arguments).max_running_requests
            if held != asked:
                raise ValueError(f"{asked} requests were to run at once, not {held}")
        adaptive = getattr(arguments, "speculative_adaptive_config", None)
        if adaptive:
            rules = import_module("sglang.srt.speculative.adaptive_spec_params")
            found = sorted(rules.resolve_candidate_steps_from_config(adaptive))
            entries = json.loads(Path(adaptive).read_text()).values()
            wanted = sorted({step for entry in entries for step in entry.get("candidate_steps", ())})
            if found != wanted:  # a version without keys by batch passes over them
                raise ValueError(f"the file's candidate steps are {wanted}, and {found} were read")
            if not _resolved(arguments).speculative_adaptive:
                raise ValueError("adaptive steps were asked for, and switched off as not supported")

    return parse


def _resolved(arguments: Any) -> Any:  # Any: a class of SGLang's, and its view of it
    """Return SGLang's arguments as they were resolved; versions that seal them tell that in a view."""
    try:
        return import_module("sglang.srt.arg_groups.overrides").resolved_view(arguments)
    except (ModuleNotFoundError, AttributeError):
        return arguments


def vllm_parser() -> Parser:
    """Return vLLM's own: the flags of `vllm serve`, `SpeculativeConfig`, and the scheduler's table of rows by batch.

    The configuration is read on the target's and drafter's own files.
    """
    sys.meta_path.append(Stubs(VLLM_STUBS))
    platform = import_module("vllm.platforms.cpu").CpuPlatform()
    vars(import_module("vllm.platforms"))["_current_platform"] = platform  # one built for no device knows none
    read, parallel = vllm_reader(), import_module("vllm.config").ParallelConfig

    def parse(words: list[str]) -> None:
        arguments = read(words)
        if arguments.speculative_config is not None:
            target = arguments.create_model_config()
            config = arguments.create_speculative_config(target_model_config=target, target_parallel_config=parallel())
            rows = getattr(config, "num_speculative_tokens_per_batch_size", None)
            if rows is not None:  # a version that has the field has the table
                table = import_module("vllm.v1.spec_decode.dynamic.utils").build_dynamic_sd_schedule_lookup
                table(rows, MOST_SEQUENCES, config.num_speculative_tokens)

    return parse


def vllm_reader() -> Callable[[list[str]], Any]:
    """Return what makes vLLM's arguments of the words behind its name, as its command does."""
    arguments_of = import_module("vllm.engine.arg_utils").AsyncEngineArgs.from_cli_args
    parser_class = _first("vllm.utils.argparse_utils", "vllm.utils").FlexibleArgumentParser
    places = (f"vllm.entrypoints.{folder}.cli_args" for folder in ("launchers", "openai", "common"))
    flags = _first(*places)
    parser = flags.make_arg_parser(parser_class())

    def read(words: list[str]) -> Any:
        told = parser.parse_args(words[1:])  # behind serve
        told.model = told.model_tag
        return arguments_of(told)

    return read


def llama_parser() -> Parser:
    """Return llama.cpp's own: `common_params_parse` as it lies in the wheel of xllamacpp."""
    xllamacpp = import_module("xllamacpp")
    library = ctypes.CDLL(str(next(Path(str(xllamacpp.__file__)).parent.glob("*.so"))))
    parse_flags = library._Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E
    parse_flags.restype = ctypes.c_bool
    parse_flags.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]

    def accepts(words: list[str], program: int) -> bool:
        params = xllamacpp.CommonParams()
        where = id(params) + object.__basicsize__  # its fields begin behind the head of a Python object
        params.n_predict = 123456
        if ctypes.c_int32.from_address(where).value != 123456:
            raise RuntimeError("the parameters of this xllamacpp do not lie where they were looked for")
        texts = [ctypes.create_string_buffer(word.encode()) for word in ["llama-server", *words]]
        pointers = (ctypes.c_void_p * (len(texts) + 1))(*(ctypes.addressof(text) for text in texts))
        return bool(parse_flags(len(texts), pointers, where, program, None))

    def must(words: list[str], program: int) -> None:
        if not accepts(words, program):
            raise ValueError("common_params_parse returned false")

    able = [program for program in PROGRAMS if not refusal(partial(must, program=program), ["--slots"])]
    if len(able) != 1:
        raise RuntimeError(f"--slots is the server's own flag, yet the programs that take it are {able}")
    return partial(must, program=able[0])


def transformers_parser() -> Parser:
    """Return transformers' own: the fields of `GenerationConfig`, its checks, and the exported program as it runs."""
    config_class = import_module("transformers").GenerationConfig

    def parse(words: list[str]) -> None:
        file = Path("generation.json")
        values = json.loads(file.read_text()) if file.exists() else {}
        config = config_class()
        unknown = config.update(**values)  # `generate` refuses what is left
        if unknown:
            raise ValueError(f"unknown to GenerationConfig: {sorted(unknown)}")
        config.validate(strict=True)
        run_program(words)

    return parse


def openvino_parser() -> Parser:
    """Return OpenVINO GenAI's own: the exported program as it runs, and the checks of the configuration it makes.

    The models would have to be converted: the pipeline and a draft model are inert, and what the program hands to
    `generate` is checked by its own `validate`.
    """
    openvino_genai: Any = import_module("openvino_genai")  # whose parts are replaced

    class Pipeline(Inert):
        def generate(self, _: str, config: Any) -> str:
            config.validate()
            return ""

    def parse(words: list[str]) -> None:
        openvino_genai.LLMPipeline, openvino_genai.draft_model = Pipeline, Inert
        run_program(words)

    return parse


def run_program(words: list[str]) -> None:
    """Run an exported program with its words."""
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


def tensorrt_parser() -> Parser:
    """Return TensorRT-LLM's own: its arguments as pydantic reads them from the YAML."""
    read, arguments = import_module("yaml").safe_load, import_module("tensorrt_llm.llmapi.llm_args").TorchLlmArgs

    def parse(words: list[str]) -> None:
        file = Path("speculative.yaml")
        arguments(model=words[0], **(read(file.read_text()) if file.exists() else {}))

    return parse


PARSERS: dict[str, tuple[str, Callable[[], Parser], Sequence[str]]] = {
    "sglang": ("sglang", sglang_parser, SGLANG_STUBS),
    "vllm": ("vllm", vllm_parser, VLLM_STUBS),
    "tensorrt-llm": ("tensorrt_llm", tensorrt_parser, ()),
    "transformers": ("transformers", transformers_parser, ()),
    "llama.cpp": ("xllamacpp", llama_parser, ()),
    "openvino": ("openvino_genai", openvino_parser, ()),
}


def refusal(parser: Parser, words: list[str]) -> str:
    """Return why a parser refuses words, empty where it takes them; it runs in a process of its own."""
    with tempfile.TemporaryFile("w+b") as said:
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            status = 1
            try:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                parser(words)
                status = 0
            except SystemExit:
                pass  # argparse has said why
            except BaseException as error:
                os.write(2, f"\n{type(error).__name__}: {' '.join(str(error).split())}".encode())
            os._exit(status)
        _, how = os.waitpid(process, 0)
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    return "" if how == 0 else f"{lines[-1] if lines else f'ended with status {how}'}"


def installed_version(package: str) -> str:
    """Return the version of a package that can be imported, whatever its distribution is called."""
    found = packages_distributions().get(package)
    if not found:
        raise PackageNotFoundError(package)
    return version(found[0])


def main() -> None:
    """Parse all cases with the engine's parser and print the verdicts."""
    name = sys.argv[1]
    package, build, stubs = PARSERS[name]
    if sys.argv[2:] == ["--version"]:
        print(installed_version(package))
        return
    try:
        parser = build()
        told = installed_version(package)
    except (Exception, SystemExit) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return
    verdicts = []
    for case in json.load(sys.stdin):
        with tempfile.TemporaryDirectory() as folder:
            for file, text in case["files"]:
                (Path(folder) / file).write_text(text, encoding="utf-8")
            os.chdir(folder)
            verdicts.append(refusal(parser, case["words"]))
            os.chdir("/")
    print(json.dumps({"version": told, "stubbed": sorted(set(stubs) - _installed()), "refusals": verdicts}))


def _first(*names: str) -> types.ModuleType:
    """Return the first of some modules that is there: versions keep the same thing in different places."""
    for name in names[:-1]:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    return import_module(names[-1])


def _installed() -> set[str]:
    """Return the packages that are there for real; only what is not there is stubbed."""
    finders = [finder for finder in sys.meta_path if not isinstance(finder, Stubs)]
    stubs = {*SGLANG_STUBS, *VLLM_STUBS}
    return {name for name in stubs if any(finder.find_spec(name, None) for finder in finders)}


if __name__ == "__main__":
    main()

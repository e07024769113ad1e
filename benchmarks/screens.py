"""Draw what the first commands print, at 100 columns, into `docs/screens/`.

    python benchmarks/screens.py STORE [DEMO.txt]

STORE is one that `spectune demo --store` or `spectune plan` wrote; DEMO.txt is what the demo printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 100
FOLDER = Path(__file__).parent.parent / "docs" / "screens"


def main() -> int:
    """Write a picture of every screen; return 1 where a command failed."""
    store, demo = sys.argv[1], sys.argv[2:]
    screens = {"help": printed("--help"), "show-plan": printed("show", "plan", "--store", store)}
    if demo:
        screens["demo"] = Path(demo[0]).read_text()
    FOLDER.mkdir(exist_ok=True)
    for name, text in screens.items():
        draw(
            f"spectune {name.replace('-', ' ')}" if name != "help" else "spectune --help", text, FOLDER / f"{name}.svg"
        )
    return 0


def printed(*arguments: str) -> str:
    """Return what a command prints.

    Raises:
        CalledProcessError: it failed.
    """
    command = [sys.executable, "-m", "spectune", *arguments]
    environment = os.environ | {"COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def draw(title: str, text: str, file: Path) -> None:
    """Write a text as a picture of a terminal."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(width=COLUMNS, record=True, file=nowhere)
        console.print(Text(text.rstrip("\n")))
        file.write_text(console.export_svg(title=title))


if __name__ == "__main__":
    sys.exit(main())

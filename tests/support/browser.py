"""Headless Chromium: what it makes of a page, and what it complains about."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A page as the browser left it, and what it said on its console."""

    dom: str
    console: tuple[str, ...]

    def told(self) -> Any:  # Any: JSON values
        """Return what a script of the test left in the page under the id `told`."""
        found = re.search(r'<script id="told" type="application/json">(.*?)</script>', self.dom, re.DOTALL)
        assert found is not None, f"the script of the test did not end: {self.console}"
        return json.loads(unescape(found[1]))


def look(page: Path, folder: Path, *, width: int = 1280, height: int = 900, is_dark: bool = False) -> Looked:
    """Open a page in a browser that reaches no network, and return it once its scripts have run."""
    assert CHROMIUM is not None
    scheme = 0 if is_dark else 1  # of Blink's settings
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", f"--user-data-dir={folder}",
        f"--window-size={width},{height}", f"--blink-settings=preferredColorScheme={scheme}",
        "--virtual-time-budget=3000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    lines = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Looked(dom=done.stdout, console=tuple(lines))


def with_script(html: str, script: str) -> str:
    """Return a page without its policy, with a script of the test that leaves `told` in it.

    Args:
        html: a page.
        script: ends with `return VALUE`; VALUE goes to `Looked.told`.
    """
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    body = f"""<script>{{
      const value = (() => {{ {script} }})();
      const told = document.createElement("script");
      told.id = "told"; told.type = "application/json"; told.textContent = JSON.stringify(value);
      document.body.append(told);
    }}</script></body>"""
    return free.replace("</body>", body)


def framed(html: str, width: int) -> str:
    """Return a page that shows another one as narrow as a phone, which no window of a headless browser is.

    Args:
        html: made by `with_script`; what it leaves is told by the outer page.
        width: of the inner page's window, in pixels.
    """
    return f"""<!DOCTYPE html><title>framed</title><body>
    <iframe width="{width}" height="800" frameborder="0" srcdoc="{escape(html, quote=True)}"></iframe>
    <script>document.querySelector("iframe").addEventListener("load", (event) => {{
      document.body.append(event.target.contentDocument.getElementById("told").cloneNode(true));
    }});</script></body>"""

"""Build the site of docs/ into a folder, strictly: python .ci/site.py FOLDER.

Links of a page to files of the repository outside docs/ become plain names, since a site has no such files. One that is
not there is an error. `zensical build --strict` checks all other links. A built page that would fetch a style, a script
or a picture from elsewhere is an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
FETCHED = r"<(?:link|script|img|iframe|source)\b[^>]*?\b(?:href|src)=\"?((?:https?:)?//[^\" >]+)"


def main() -> int:
    """Build the site; return 1 where something is wrong."""
    target = Path(sys.argv[1]).absolute()
    with TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copy(ROOT / "mkdocs.yml", copy)
        shutil.copytree(ROOT / "docs", copy / "docs")
        gone = [fault for page in sorted((copy / "docs").rglob("*.md")) for fault in within_site(page, copy)]
        built = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=copy).returncode
        pages = sorted((copy / "site").rglob("*.html"))
        fetched = [f"{page.relative_to(copy)} fetches {url}" for page in pages for url in fetched_by(page)]
        shutil.copytree(copy / "site", target, dirs_exist_ok=True)
    print(*gone, *fetched, f"{len(pages)} pages in {target}", sep="\n")
    return int(bool(built or gone or fetched or not pages))


def within_site(page: Path, copy: Path) -> list[str]:
    """Make names of the links that leave docs/; return what is wrong with them."""
    gone: list[str] = []

    def named(link: re.Match[str]) -> str:
        place = (page.parent / link[2].partition("#")[0]).resolve()
        if place.is_relative_to((copy / "docs").resolve()):
            return link[0]
        own = place.relative_to(copy.resolve())
        if not (ROOT / own).exists():
            gone.append(f"{page.relative_to(copy)}: there is no {own}")
        return f"{link[1]} (`{own}`)" if link[1].strip("`") != str(own) else f"`{own}`"

    text = re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)", named, page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")
    return gone


def fetched_by(page: Path) -> list[str]:
    """Return what a browser would fetch from elsewhere to show a page."""
    tags = re.findall(r"<(?:link|script|img|iframe|source)\b[^>]*>", page.read_text(encoding="utf-8"))
    tags = [tag for tag in tags if 'rel="canonical"' not in tag]
    return [found[1] for tag in tags if (found := re.search(FETCHED, tag))]


sys.exit(main())

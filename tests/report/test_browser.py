"""Pages in a real browser: nothing is complained about, nothing is wider than a phone, and charts obey the keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spectune.db.sql.sql_store import SqlStore
from spectune.report.site.contents import Contents
from spectune.report.site.frame import Frame, document
from spectune.report.site.links import SiteLinks
from spectune.report.site.page import SitePage
from spectune.report.site.surface import surface_page_of
from spectune.report.site.whole import whole_report

from ..support.browser import CHROMIUM, Looked, framed, look, with_script
from ..support.site_store import filled_store

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, e.g. Debian's package chromium")

Open = Callable[..., Looked]

TOO_WIDE = """
  const room = document.documentElement.clientWidth;
  const wide = [...document.querySelectorAll("body *")].filter((each) => {
    const box = each.getBoundingClientRect();
    return box.right > room + 1 && box.width > 0 && !each.closest(".scroll, .chart, .skip, [hidden]");
  });
  return {page: document.documentElement.scrollWidth, room, wide: wide.map((each) => each.outerHTML.slice(0, 80))};
"""


@pytest.fixture(scope="module")
def store() -> Iterator[SqlStore]:
    with filled_store() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(store: SqlStore) -> str:
    return str(whole_report(store))


@pytest.fixture(scope="module")
def surface(store: SqlStore) -> str:
    contents = Contents(store)
    page: SitePage = surface_page_of(contents, SiteLinks(), contents.surfaces[0])
    frame = Frame(links=SiteLinks(), place="a store")
    return str(document(frame, [page], title=page.title, current=page.name))


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    def show(html: str, **options: int | bool) -> Looked:
        file = tmp_path / "page.html"
        file.write_text(html)
        return look(file, tmp_path / "profile", **options)  # type: ignore[arg-type]  # as `look` names them

    return show


def test_the_file_runs_under_its_own_policy_without_a_complaint(opened: Open, report: str) -> None:
    seen = opened(report, is_dark=True)
    assert seen.console == ()
    assert '<button type="button" id="theme">Light mode</button>' in seen.dom  # its script ran, and saw the dark
    assert '<form class="controls"' in seen.dom
    assert not [part for part in seen.dom.split('<form class="controls"')[1:] if "hidden" in part.split(">")[0]]


def test_a_script_that_is_not_of_the_file_is_refused_and_told(opened: Open, report: str) -> None:
    seen = opened(report.replace("</body>", "<script>document.body.id = 'mine'</script></body>"))
    assert 'id="mine"' not in seen.dom
    assert len(seen.console) == 1


def test_nothing_is_wider_than_a_phone_but_what_scrolls_by_itself(opened: Open, report: str) -> None:
    told = opened(framed(with_script(report, TOO_WIDE), 390)).told()
    assert told["room"] == 390
    assert (told["page"], told["wide"]) == (390, [])


def test_arrow_keys_go_from_mark_to_mark_and_say_what_each_is(opened: Open, surface: str) -> None:
    script = """
      const marks = [...document.querySelectorAll(".chart svg")][0].querySelectorAll(".mark");
      const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
      const tabbed = [...marks].filter((mark) => mark.tabIndex === 0).length;
      const said = [];
      marks[0].focus();
      for (const key of ["", "ArrowRight", "ArrowLeft", "End"]) {
        if (key) press(key);
        said.push(document.getElementById("tip").textContent === document.activeElement.getAttribute("aria-label"));
        said.push([...marks].indexOf(document.activeElement));
      }
      press("Escape");
      return {tabbed, said, last: marks.length - 1, hidden: document.getElementById("tip").hidden};
    """
    told = opened(with_script(surface, script)).told()
    assert told["tabbed"] == 1
    assert told["said"] == [True, 0, True, 1, True, 0, True, told["last"]]
    assert told["hidden"]


def test_a_reader_may_choose_a_batch_a_context_and_how_the_axes_are_spaced(opened: Open, surface: str) -> None:
    script = """
      const form = document.querySelector(".controls");
      const charts = [...document.getElementById(form.dataset.panels).querySelectorAll(".chart")];
      const place = () => charts[0].querySelector("[data-at]").getAttribute("transform");
      const choose = (name, value, to) => {
        const input = [...form.elements].find((each) => each.name === name && each.value === value);
        input.checked = to;
        input.dispatchEvent(new Event("change", {bubbles: true}));
      };
      const before = place();
      choose("panel", "batch 8", true);
      const shown = charts.map((chart) => !chart.hidden);
      choose("panel", "", true);
      choose("line", "900", false);
      const lines = [...charts[0].querySelectorAll(".line[data-line]")].map((line) => !line.hasAttribute("hidden"));
      choose("line", "900", true);
      choose("y", "other", true);
      const moved = place();
      choose("y", "usual", true);
      return {shown, lines, before, moved, after: place()};
    """
    told = opened(with_script(surface, script)).told()
    assert told["shown"] == [False, True]
    assert told["lines"] == [True, False]
    assert told["before"] == told["after"] != told["moved"]


def test_light_and_dark_follow_the_reader_s_choice(opened: Open, surface: str) -> None:
    script = """
      const ground = () => getComputedStyle(document.body).backgroundColor;
      const button = document.getElementById("theme");
      const seen = [ground()];
      button.click(); seen.push(ground());
      const kept = localStorage.getItem("spectune-theme");
      button.click(); seen.push(ground());
      return {seen, kept};
    """
    told = opened(with_script(surface, script)).told()
    assert told["seen"] == ["rgb(250, 249, 247)", "rgb(17, 19, 22)", "rgb(250, 249, 247)"]
    assert told["kept"] == "dark"

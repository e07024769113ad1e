"""Figures in files: the right format, the right size, or one line that says what is wrong."""

from __future__ import annotations

import struct
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from spectune.errors import RequestError
from spectune.report.figure import Figure
from spectune.report.palette import LIGHT
from spectune.report.picture import require_picture, write_picture
from spectune.report.surface import surface_figure

from ..support.drawn_pages import parsed
from .test_surface import SURFACE


@pytest.fixture(scope="module")
def figure() -> Figure:
    return surface_figure(SURFACE, device="Abacus", model="large")


@pytest.fixture(scope="module")
def png(figure: Figure, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("pictures") / "surface.png"
    write_picture(path, figure)
    return path.read_bytes()


def test_a_png_has_its_signature_and_the_size_of_its_panels(png: bytes) -> None:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    assert width == 3 * 4.7 * 160  # three panels side by side, in inches, at 160 dots per inch
    assert 600 < height < 1200


def test_a_png_shows_the_lines_in_their_colours(png: bytes) -> None:
    pixels = np.rint(imread(BytesIO(png))[..., :3] * 255).astype(int).reshape(-1, 3)
    for shade in (LIGHT.shade(0.0), LIGHT.shade(1.0)):
        wanted = [int(shade[at : at + 2], 16) for at in (1, 3, 5)]
        assert (pixels == wanted).all(axis=1).sum() > 500


def test_a_name_with_dollar_signs_is_no_formula(tmp_path: Path) -> None:
    write_picture(tmp_path / "s.png", surface_figure(SURFACE, device="$\\frac$", model="a$b_{$c"))
    assert (tmp_path / "s.png").stat().st_size > 10_000


def test_an_html_file_is_a_page(figure: Figure, tmp_path: Path) -> None:
    write_picture(tmp_path / "surface.HTML", figure)
    assert parsed((tmp_path / "surface.HTML").read_text(encoding="utf-8")).is_whole


@pytest.mark.parametrize("name", ["surface.svg", "surface", "surface.png.txt"])
def test_an_unknown_suffix_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"end the name in \.png or \.html") as refusal:
        require_picture(tmp_path / name)
    assert "\n" not in str(refusal.value)


def test_a_missing_folder_is_refused_and_not_made(figure: Figure, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no folder"):
        write_picture(tmp_path / "absent" / "surface.png", figure)
    assert not list(tmp_path.iterdir())

"""Figures as files: reproducible, accessible, legible in light and dark mode and on a phone."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from remembering.report import figure
from remembering.report.curves import Curve, draw_curves
from remembering.report.figure import DARK, HEAT, PAGE, WIDTH, Plot, dark_mode, text_width, wrap
from remembering.report.groups import Statistic
from remembering.report.looks import OURS

SVG = "{http://www.w3.org/2000/svg}"
TEXT = (figure.INK, figure.QUIET, *(getattr(figure, name) for name in (
    "BLUE", "VERMILION", "GREEN", "PURPLE", "ORANGE", "GREY")))  # fmt: skip


def make_plot(title: str = "A title", label: str = "ours") -> Plot:
    values = (Statistic(0.98765432, 0.1, 2), Statistic(0.5, 0.01, 2))
    fig = draw_curves(title, "settings", [Curve(label, values, OURS)])
    return Plot(fig, title, "A caption.", "A number: 0.98765.")


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", TEXT)
def test_text_is_legible_in_both_modes(colour: str) -> None:
    assert contrast(colour, PAGE) >= 4.5
    assert contrast(DARK[colour], DARK[PAGE]) >= 4.5


def test_numbers_are_legible_on_cells_of_every_intensity() -> None:
    for ink, page, heat in (
        (figure.INK, PAGE, HEAT),
        (DARK[figure.INK], DARK[PAGE], DARK[HEAT]),
    ):
        for step in range(11):
            mixed = "#" + "".join(
                f"{round(step / 10 * int(heat[i : i + 2], 16) + (1 - step / 10) * int(page[i : i + 2], 16)):02x}"  # noqa: E501
                for i in (1, 3, 5)
            )
            assert contrast(ink, mixed) >= 4.5


def test_every_colour_of_a_figure_has_one_for_dark_mode() -> None:
    drawing = make_plot().document()
    used = set(
        re.findall(
            r"(?:fill|stroke): (#[0-9a-f]{6})",
            re.sub(r"<style>.*?</style>", "", drawing, flags=re.DOTALL),
        )
    )
    assert used
    assert used <= set(DARK)
    for light, dark in DARK.items():
        assert f'[style*="fill: {light}"] {{ fill: {dark} !important; }}' in dark_mode()
        assert f'[style*="stroke: {light}"] {{ stroke: {dark} !important; }}' in drawing


def test_a_figure_has_title_and_description() -> None:
    plot = make_plot('1 < 2 & "x"')
    root = ElementTree.fromstring(plot.document())
    assert root.attrib["role"] == "img"
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert title.text == '1 < 2 & "x"'
    assert description.text == "A caption. A number: 0.98765."
    assert root.attrib["aria-labelledby"] == title.attrib["id"]
    assert root.attrib["aria-describedby"] == description.attrib["id"]


def test_ids_are_those_that_are_used_and_have_the_prefix() -> None:
    drawing = make_plot().svg("some-name")
    ids = re.findall(r' id="([^"]*)"', drawing)
    used = re.findall(r'(?:href="#|url\(#|labelledby="|describedby=")([^")]*)', drawing)
    assert set(ids) == set(used)
    assert len(ids) == len(set(ids))
    assert all(name.startswith("some-name-") for name in ids)


def test_coordinates_are_rounded_and_texts_are_not() -> None:
    drawing = make_plot(label="0.12345").svg()
    tags = "".join(re.findall(r"<[^>]*>", drawing))
    assert not re.search(r"\d\.\d{3}", tags.replace("0.98765", ""))
    assert "0.12345" in drawing
    assert "0.98765" in drawing


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    files = [make_plot().save(tmp_path / folder, "x") for folder in ("a", "b")]
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["x.png", "x.svg"]


def test_figures_are_as_wide_as_a_phone() -> None:
    root = ElementTree.fromstring(make_plot("A very long title " * 20).document())
    assert root.attrib["viewBox"].split()[2] == f"{WIDTH:g}"
    sizes = [
        float(size) for size in re.findall(r"font(?:-size)?: [a-z ]*([\d.]+)px", make_plot().svg())
    ]
    assert sizes
    assert min(map(float, sizes)) * 358 / WIDTH >= 9  # on a screen of 390 px with margins of 16 px


def test_texts_are_broken_and_cut_to_a_width() -> None:
    lines = wrap("one two three four five " * 3, 60, 10, lines=2)
    assert len(lines) == 2
    assert lines[1].endswith("…")
    assert all(text_width(line, 10) <= 60 for line in lines)
    assert wrap("x" * 100, 60, 10, lines=2)[0].endswith("…")
    assert wrap("", 60, 10) == []

"""The Markdown for docs/results.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from remembering.report.markdown import results_markdown

from .example import make_result

WriteRun = Callable[..., Path]


def test_each_table_follows_its_command(write_run: WriteRun) -> None:
    for seed in (0, 1):
        folder = write_run(f"a{seed}", make_result(seed=seed))
    write_run("b", make_result(variant="E=3"))
    text = results_markdown([folder.parent], intro="# Results\n\nHello.", command="make results")
    lines = text.splitlines()
    assert lines[0] == "<!-- Written by `make results`; do not edit by hand. -->"
    assert lines[2:5] == ["# Results", "", "Hello."]
    command = "remember run cifar10-5 --small --seeds 0,1"
    at = lines.index(command)
    assert lines[at - 1 : at + 3] == ["```sh", command, "```", ""]
    assert lines[at + 3] == (
        "**cifar10-5 (small): backbone bundled, data digits at 28×28 px, 5 tasks, "
        "router autoencoder on layer 0, seeds 0, 1**"
    )
    assert "| sample (each image alone) | 61.0 ± 0.0 | 62.0 ± 0.0 | 12.3 ± 0.0 | – |" in lines
    assert lines.count("CIFAR-10 in five tasks of two classes.") == 1
    assert "## All results" in lines


def test_routing_units_are_compared_in_words(write_run: WriteRun) -> None:
    text = results_markdown([write_run("a", make_result())])
    assert "routing accuracy 62.0 % (sample), 88.0 % (group_32), 100.0 % (task)" in text
    assert "Accuracy 61.0 % (sample), 87.0 % (group_32), 97.0 % (task)" in text


def test_order_of_paths_does_not_matter(write_run: WriteRun) -> None:
    runs = [write_run(f"{i}", make_result(variant=f"E={i}")) for i in (2, 3, 5)]
    text = results_markdown(runs)
    assert text == results_markdown(runs[::-1])
    assert text.index("E=5") < text.index("E=3") < text.index("E=2")


def test_hostile_text_stays_text(write_run: WriteRun) -> None:
    hostile = "x\n```\n<script>alert(1)</script>"
    run = write_run("a", make_result(experiment=hostile, description=hostile))
    text = results_markdown([run], command="a --> <b>")
    assert text.startswith("<!-- Written by `a -- > <b>`;")
    fenced = text.split("```sh\n")[1].split("\n```")[0]
    assert fenced == "remember run 'x ``` <script>alert(1)</script>' --small --seeds 0"
    assert "<script>" not in text.replace(fenced, "")

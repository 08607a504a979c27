"""Records are complete, are added one by one, and restore docs/results.md and the README."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from remembering.cli import main
from remembering.errors import RememberingError
from remembering.experiments.result import MethodInfo, RunResult, TaskInfo, write_result
from remembering.report.figure_files import Figures
from remembering.report.groups import Seeds, load_results
from remembering.report.markdown import results_markdown
from remembering.report.readme import fill_readme
from remembering.report.records import record, record_path

from .example import make_baseline, make_result, published_model, unit_result

WriteRun = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[2]
README = """# Title

<!-- results:figure -->
<!-- end -->

<!-- results:single-images -->
old
<!-- end -->

Text.

<!-- results:domains -->
<!-- end -->
"""


def compared(method: str, accuracy: float, seed: int = 0, **changes: Any) -> RunResult:
    command = ("compare", changes.get("experiment", "cifar10-5"), "--small")
    return make_baseline(method, [1.0, accuracy], seed, command=command, **changes)


def as_records(folder: Path, *results: RunResult) -> Path:
    """Record results that were found in one folder each."""
    runs = folder.parent / "runs"
    for i, result in enumerate(results):
        (runs / str(i)).mkdir(parents=True)
        write_result(runs / str(i) / "results.json", result)
    record([runs], folder)
    shutil.rmtree(runs)
    return folder


def test_paths_of_records() -> None:
    assert [
        str(record_path(result, Path("results")))
        for result in (
            make_result(seed=3),
            make_result(small=False, variant="CIFAR-10 first"),
            make_result(experiment="paper/capacity", variant="E=3"),
            compared("ours-first", 0.5, seed=12),
            make_result(experiment="../../x", variant="../y", small=False),
        )
    ] == [
        "results/cifar10-5-small/model-seed-3.json.gz",
        "results/cifar10-5-cifar-10-first/model-seed-0.json.gz",
        "results/paper-capacity-small-e-3/model-seed-0.json.gz",
        "results/compare-cifar10-5-small/ours-first-seed-12.json.gz",
        "results/x-y/model-seed-0.json.gz",
    ]


def test_seeds_are_added_one_by_one(write_run: WriteRun, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    first = write_run("a", make_result(seed=0))
    assert record([first], folder) == [folder / "cifar10-5-small" / "model-seed-0.json.gz"]
    (tmp_path / "results" / "paper-routing.json.gz").write_bytes(b"not a result of a run")
    second = write_run("b", make_result(seed=1))
    assert len(record([first, second], folder)) == 1
    assert Seeds.of(load_results([folder])).seeds == (0, 1)
    assert record([folder], folder) == []


def test_a_run_replaces_its_record_but_not_one_with_other_settings(
    write_run: WriteRun, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    record([write_run("a", make_result())], folder)
    again = make_result(seconds=50.0)
    record([write_run("b", again)], folder)
    assert load_results([folder]) == [again]
    other = [write_run("c", make_result(epochs=3)), write_run("d", make_result(seed=1))]
    with pytest.raises(RememberingError, match=r"has other settings \(learning.epochs\)"):
        record(other, folder)
    assert load_results([folder]) == [again]
    with pytest.raises(RememberingError, match="two results would be recorded as"):
        record([write_run("e", make_result(seed=2)), write_run("f", make_result(seed=2))], folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RememberingError, match="no record in"):
        record([tmp_path / "empty"], folder)


def test_results_of_other_versions_are_not_averaged() -> None:
    old, new = ({"remembering": version, "torch": "2.13.0"} for version in ("0.1", "0.2"))
    with pytest.raises(RememberingError, match="differ in version of remembering"):
        Seeds.of([make_result(environment=old), make_result(seed=1, environment=new)])


def test_tables_name_the_code(tmp_path: Path) -> None:
    commits = ["1" * 40, "2" * 40 + "+changes"]
    results = [
        make_result(2, seed, environment={"remembering": "0.1", "commit": commit})
        for seed, commit in enumerate(commits)
    ]
    text = results_markdown([as_records(tmp_path / "results", *results)])
    assert "Code: 0.1 111111111, 0.1 222222222 with changes." in text


def single_images() -> list[RunResult]:
    """Two seeds of ours, 60 and 70 %; others are lower or higher."""
    command = ("compare", "cifar10-5", "--small")
    published = replace(published_model(tasks=2), routing=None)
    published = replace(published, config=replace(published.config, command=command))
    return [
        *(compared("ours", 0.6 + 0.1 * seed, seed) for seed in (0, 1)),
        *(compared("ours-first", 0.58 + 0.1 * seed, seed) for seed in (0, 1)),
        *(compared("gaussian", 0.55 + 0.1 * seed, seed) for seed in (0, 1)),
        *(compared("joint", 0.5, seed) for seed in (0, 1)),
        compared("joint-tuned", 0.9, 1),
        compared("finetune", 0.2),
        published,
    ]


def figures(folder: Path) -> Figures:
    return Figures(folder / "docs" / "figures", folder / "README.md")


def cells(text: str, experiment: str) -> dict[str, str]:
    """Return the cells of an experiment in the table of single images, by column."""
    lines = text.splitlines()
    header = next(line for line in lines if line.startswith("| Experiment"))
    row = next(line for line in lines if line.startswith(f"| {experiment}<br>"))
    pairs = zip(header.split(" | ")[1:], row.split(" | ")[1:], strict=True)
    return {
        name.strip(" |"): cell.strip(" |").replace("<br>", " ").replace("&nbsp;", " ")
        for name, cell in pairs
    }


def test_the_table_of_single_images(tmp_path: Path) -> None:
    folder = as_records(tmp_path / "results", *single_images())
    text = fill_readme(README, [folder], figures(tmp_path))
    assert cells(text, "cifar10-5 (small)") == {
        "Ours": "65.0 ± 7.1 494.0 kB",
        "Router alone, frozen": "60.0 ± 7.1 (−5.0) 494.0 kB",
        "Router alone, adapted": "63.0 ± 7.1 (−2.0) 494.0 kB",
        "Best joint training": "90.0 1 seed (+20.0) 494.0 kB",  # paired: 90 minus 70
        "As published, sample": "30.0 1 seed (−30.0) 494.0 kB",
        "As published, task": "90.0 1 seed 494.0 kB",  # another unit: no difference
        "Fine-tuning": "20.0 1 seed (−40.0) 494.0 kB",
    }
    for remark in (
        "- cifar10-5 (small): bundled, 28 px, 2 tasks, seeds 0, 1.",
        "- As accurate as ours, or more (points): cifar10-5 (small): Best joint training +20.0.",
        "- Best joint training: cifar10-5 (small): joint-tuned.",
        "- Adaptation to the first task adds (points): cifar10-5 (small): +3.0.",
        "- Later adapters add (points): cifar10-5 (small): +2.0.",
    ):
        assert remark in text
    assert "No results of cifar100-10, digits-5, permuted-mnist-10 are recorded yet." in text
    assert "No results of domains-5 are recorded yet." in text
    assert "old" not in text.splitlines()


def test_the_best_variant_of_joint_training_is_named(tmp_path: Path) -> None:
    names = {"joint": 0.5, "joint-tuned": 0.8, "joint-gaussian": 0.7}
    results = [compared("ours", 0.6), *(compared(name, end) for name, end in names.items())]
    folder = as_records(tmp_path / "results", *results)
    text = fill_readme(README, [folder], figures(tmp_path))
    assert cells(text, "cifar10-5 (small)")["Best joint training"] == "80.0 (+20.0) 494.0 kB"
    assert "- Best joint training: cifar10-5 (small): joint-tuned." in text


def test_a_missing_record_is_a_dash(tmp_path: Path) -> None:
    results = [
        compared("ours", 0.6),
        compared("ours", 0.6, experiment="digits-5"),
        compared("finetune", 0.2, experiment="digits-5"),
    ]
    folder = as_records(tmp_path / "results", *results)
    text = fill_readme(README, [folder], figures(tmp_path))
    assert cells(text, "cifar10-5 (small)")["Fine-tuning"] == "–"
    assert cells(text, "digits-5 (small)")["Fine-tuning"] == "20.0 (−40.0) 494.0 kB"


def test_the_first_figure_shows_ours_and_what_it_is_compared_with(tmp_path: Path) -> None:
    folder = as_records(tmp_path / "results", *single_images(), compared("ewc", 0.3))
    found = figures(tmp_path)
    text = fill_readme(README, [folder], found)
    alt = (
        "![cifar10-5 (small): accuracy on single images. After the last task: Ours 65.0 %, Joint "
        "training, all images at once 90.0 %, Router alone, adapted 63.0 %, Router alone, frozen "
        "60.0 %, The paper's router 30.0 %, Fine-tuning 20.0 %.]"
    )
    assert f"{alt}(docs/figures/accuracy.svg)" in text
    (path,) = found.files
    assert path == tmp_path / "docs" / "figures" / "accuracy.svg"
    drawing = found.files[path].decode()
    assert "65.0 Ours" in drawing
    assert "EWC" not in drawing


def test_the_first_figure_needs_something_to_compare_with(tmp_path: Path) -> None:
    folder = as_records(tmp_path / "results", compared("ours", 0.6), compared("finetune", 0.2))
    found = figures(tmp_path)
    text = fill_readme(README, [folder], found)
    assert "<!-- results:figure -->\n\nNo results are recorded yet.\n" in text
    assert not found.files


def test_results_of_run_are_shown_as_ours(tmp_path: Path) -> None:
    folder = as_records(tmp_path / "results", make_result(2))
    text = fill_readme(README, [folder], figures(tmp_path))
    assert cells(text, "cifar10-5 (small)") == {"Ours": "61.0 494.0 kB"}


def test_seeds_are_paired_only_on_the_same_data(tmp_path: Path) -> None:
    results = [compared("ours", 0.6), compared("gaussian", 0.5, data_sha256="another")]
    folder = as_records(tmp_path / "results", *results)
    text = fill_readme(README, [folder], figures(tmp_path))
    assert cells(text, "cifar10-5 (small)")["Router alone, frozen"] == "50.0 494.0 kB"


def test_the_table_of_domains(tmp_path: Path) -> None:
    mnist, letters = (TaskInfo(name, (0, 1), 10, 5) for name in ("mnist", "letters"))
    units = {"sample": replace(unit_result([1.0, 0.5]), matrix=((0.9, None), (0.8, 0.7)))}
    router_alone = make_baseline("ours-first", [1.0, 0.5], method=MethodInfo("Router", "x", "y"))
    row = [make_result(2, units=units), router_alone]
    results = [
        replace(
            result,
            tasks=tasks,
            config=replace(result.config, experiment="domains-5", variant=variant),
        )
        for result, tasks, variant in (
            *((result, (mnist, letters), "MNIST first") for result in row),
            (make_result(1), (letters,), "letters alone"),
        )
    ]
    folder = as_records(tmp_path / "results", *results)
    text = fill_readme(README, [folder], figures(tmp_path))
    assert "| Domain | MNIST first | MNIST first: Router | Alone |" in text
    assert "| mnist | 80.0 | 50.0 | – |" in text
    assert "| letters | 70.0 | 50.0 | 100.0 |" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "<!-- results:nothing -->\n<!-- end -->",
            "no table 'nothing' of results; known",
        ),
        (
            "<!-- results:figure -->\n<!-- end -->",
            "no table 'figure' of results; .* --figures FOLDER is missing",
        ),
        ("<!-- results:domains -->\n", "1 such lines were found, 0 with an end"),
        ("# Title", "0 such lines were found"),
    ],
)
def test_wrong_comments_are_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match=message):
        fill_readme(text, [tmp_path])


def restored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return docs/results.md, its figures and the README after `make results` without them."""
    (rule,) = re.findall(r"^results:.*\n\t\$\(BIN\)/(.*)$", (ROOT / "Makefile").read_text(), re.M)
    readme = re.sub(
        r"(<!-- results:\S+ -->\n).*?(<!-- end -->)",
        r"\1\2",
        (folder / "README.md").read_text(),
        flags=re.DOTALL,
    )
    (folder / "README.md").write_text(readme)
    (folder / "docs" / "results.md").unlink(missing_ok=True)
    shutil.rmtree(folder / "docs" / "figures", ignore_errors=True)
    monkeypatch.chdir(folder)
    assert main(shlex.split(rule)[1:]) == 0
    return documents(folder)


def documents(folder: Path) -> dict[str, str]:
    """Return the documents that `make results` writes, by path."""
    paths = [folder / "README.md", folder / "docs" / "results.md"]
    paths += sorted((folder / "docs" / "figures").glob("*"))
    return {path.relative_to(folder).as_posix(): path.read_text() for path in paths}


def test_the_committed_documents_are_those_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("README.md", "docs/results-intro.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "results", tmp_path / "results")
    found, committed = restored(tmp_path, monkeypatch), documents(ROOT)
    assert sorted(found) == sorted(committed), "run make results; remove figures that it omits"
    texts = [name for name in found if name.endswith(".md")]
    assert {n: found[n] for n in texts} == {n: committed[n] for n in texts}, "run make results"
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert pinned is not None
    if version("matplotlib") != pinned[1]:
        pytest.skip(f"figures have the bytes of matplotlib {pinned[1]}")
    assert found == committed, "run make results"


@pytest.mark.parametrize("results", [[], single_images()], ids=["no records", "records"])
def test_documents_are_restored_byte_for_byte(
    results: list[RunResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results-intro.md").write_text("# Results\n")
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "results").mkdir()
    if results:
        as_records(tmp_path / "results", *results)
    first = restored(tmp_path, monkeypatch)
    assert restored(tmp_path, monkeypatch) == first
    page = first["docs/results.md"]
    assert ("No results are recorded yet." in page) == (not results)
    assert ("± 7.1<br>(−5.0)" in first["README.md"].replace("&nbsp;", " ")) == bool(results)
    linked = {f"docs/{link}" for link in re.findall(r"\]\((figures/[^)]*)\)", page)}
    linked |= set(re.findall(r"\]\((docs/figures/[^)]*)\)", first["README.md"]))
    assert linked == {name for name in first if name.endswith(".svg")}
    assert bool(linked) == bool(results)


def test_record_command(
    write_run: WriteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = write_run("a", make_result()), tmp_path / "results"
    assert main(["report", str(run), "--record", str(folder)]) == 0
    assert "1 new or changed records" in capsys.readouterr().out
    assert not (tmp_path / "report").exists()
    assert load_results([folder]) == [make_result()]

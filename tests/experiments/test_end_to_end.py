"""The whole way: bundled backbone, real digits, floors that a broken part would miss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from remembering.cli import main
from remembering.cli.demo import demo
from remembering.model import RememberingTransformer
from remembering.runtime.progress import SILENT
from remembering.storage.manifest import read_manifest

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "src/remembering/report/results.schema.json").read_text()
)
pytestmark = pytest.mark.integration
TINY = "--per-class 20 --epochs 2 --router.feature_rank-steps 5 --baselines"


def run(out: Path, options: str) -> None:
    assert main(["run", "digits-5", "--out", str(out), *options.split()]) == 0


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "out"
    demo(folder, SILENT)
    return folder


@pytest.fixture(scope="module")
def results(out: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((out / "results.json").read_text())
    return data


def test_results_follow_the_schema(results: dict[str, Any]) -> None:
    jsonschema.validate(results, SCHEMA)


def test_single_images_are_answered_right(results: dict[str, Any]) -> None:
    assert results["accuracy"]["sample"] >= 0.93
    assert results["routing_accuracy"]["sample"] >= 0.93
    assert results["router_alone_accuracy"] >= 0.93
    assert results["router"]["layers"] == [2, 3, 4, 5, 6]
    assert "router" in results["combination"]


def test_the_paper_routes_whole_tasks(results: dict[str, Any]) -> None:
    paper = results["compared"]
    assert paper["router"]["kind"] == "autoencoder"
    assert paper["routing_accuracy"]["task"] == 1.0
    assert paper["routing_accuracy"]["group_32"] > 0.8
    assert 0.4 < paper["routing_accuracy"]["sample"] < 0.9  # chance is 0.2
    assert paper["accuracy"]["task"] == results["oracle_task_accuracy"]


def test_novelty_is_told_at_the_rate_that_is_asked(results: dict[str, Any]) -> None:
    novelty = results["novelty"]
    assert all(alarms < 0.1 for alarms in novelty["false_alarms"])
    assert all(auroc > 0.85 for auroc in novelty["auroc"][:-1])
    assert novelty["auroc"][-1] is None


def test_nothing_is_forgotten_by_adapters_and_much_by_fine_tuning(results: dict[str, Any]) -> None:
    assert results["oracle_task_accuracy"] >= 0.97
    assert results["baselines"]["joint"]["accuracy"] >= 0.95
    assert results["baselines"]["finetune"]["accuracy"] < 0.5
    assert results["baselines"]["finetune"]["forgetting"] > 0.4


def test_the_matrix_and_the_curves_agree(results: dict[str, Any]) -> None:
    for i, row in enumerate(results["accuracy_matrix"]):
        learned = row[: i + 1]
        assert row[i + 1 :] == [None] * (4 - i)
        assert results["accuracy_after"]["sample"][i] == pytest.approx(sum(learned) / len(learned))


def test_the_footprint_adds_up(results: dict[str, Any]) -> None:
    footprint = results["footprint"]
    rank, layers, dim = 4, 6, 96
    assert footprint["adapters"] == 5 * 4 * layers * 2 * dim * rank
    assert footprint["heads"] == 10 * (dim + 1)
    features, usual, feature_adapter = 5 * 2 * dim, 64, 4 * layers * 2 * dim * 8
    expert = 2 + 2 * features + usual * features + usual
    assert footprint["routers"] == 5 * expert + features**2 + 2 + feature_adapter
    assert footprint["replay_bytes"] == 0
    assert footprint["bytes"] > 8 * features**2
    parts = ("adapters", "heads", "routers")
    assert footprint["total_parameters"] == sum(footprint[part] for part in parts)


def test_plots_and_page_are_written(out: Path) -> None:
    for name in ("accuracy.png", "accuracy.svg", "reconstruction-errors.png", "report/report.html"):
        assert (out / name).stat().st_size > 1000
    assert "100.0" in (out / "report/report.html").read_text()


def test_the_model_of_the_run_answers(out: Path) -> None:
    from remembering.data.sources import load

    model = RememberingTransformer.load(out / "model")
    test = load("digits").test
    prediction = model.predict(test.images)
    right = [a == b for a, b in zip(prediction.labels, test.labels.tolist(), strict=True)]
    assert sum(right) / len(right) > 0.93


@pytest.mark.parametrize("capacity", [3, 2])
def test_under_a_capacity(capacity: int, tmp_path: Path) -> None:
    paper = "--router.kind autoencoder --router.epochs 50"
    run(tmp_path, f"--capacity {capacity} {paper} --baselines")
    results = json.loads((tmp_path / "results.json").read_text())
    jsonschema.validate(results, SCHEMA)
    manifest = read_manifest(tmp_path / "model")
    assert len(manifest.adapters) == capacity
    assert {str(task.adapter) for task in manifest.tasks} == set(manifest.adapters)
    assert results["oracle_task_accuracy"] > 0.85
    assert results["footprint"]["adapters"] == capacity * 4 * 6 * 2 * 96 * 4
    assert results["footprint"]["replay_bytes"] > 0


def test_several_seeds_are_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, f"--seeds 0,1 {TINY}")
    assert "seeds 0, 1" in " ".join(capsys.readouterr().out.split())
    seeds = [json.loads(p.read_text())["seed"] for p in sorted(tmp_path.rglob("results.json"))]
    assert seeds == [0, 1]
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page")]) == 0
    assert (tmp_path / "page" / "report.html").exists()


def test_the_same_run_gives_the_same_bits(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(tmp_path / name, f"--capacity 3 {TINY}")
    one, two = (
        {p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n / "model").rglob("*.*")}
        for n in ("one", "two")
    )
    assert one == two

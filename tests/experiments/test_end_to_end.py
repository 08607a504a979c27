"""The whole product: bundled backbone, real digits, floors that a broken part would miss."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from remembering import schema
from remembering.cli import main
from remembering.cli.demo import demo
from remembering.data.sources import load
from remembering.evaluation.metrics import accuracy
from remembering.experiments.result import RoutingResult, RunResult, read_result
from remembering.model import RememberingTransformer
from remembering.runtime.progress import SILENT
from remembering.storage.manifest import read_manifest

pytestmark = pytest.mark.integration
TINY = "--per-class 20 --epochs 2 --baselines"


def run(out: Path, options: str) -> None:
    assert main(["run", "digits-5", "--out", str(out), *options.split()]) == 0


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "out"
    demo(folder, SILENT)
    return folder


@pytest.fixture(scope="module")
def result(out: Path) -> RunResult:
    return read_result(out / "results.json")


@pytest.fixture(scope="module")
def routing(result: RunResult) -> RoutingResult:
    assert result.routing is not None
    return result.routing


def baseline(out: Path, name: str) -> RunResult:
    return read_result(out / "baselines" / name / "results.json")


def test_results_follow_the_schema(out: Path) -> None:
    for path in out.rglob("results.json"):
        jsonschema.validate(json.loads(path.read_text()), schema.json_schema(RunResult))


def test_accuracy_on_single_images(result: RunResult, routing: RoutingResult) -> None:
    sample = result.units["sample"]
    assert sample.accuracy >= 0.93
    assert (sample.routing_accuracy or 0) >= 0.93
    assert routing.router.settings.layers == (1, 2)
    assert [task.adapter for task in result.tasks] == [0] * 5, "one domain, one adapter"


def test_the_papers_router_routes_whole_tasks(out: Path) -> None:
    paper = baseline(out, "ours-published")
    assert paper.routing is not None
    router = paper.routing.router
    assert (router.settings.kind, router.score_name) == ("autoencoder", "reconstruction error")
    routed = {unit: found.routing_accuracy or 0.0 for unit, found in paper.units.items()}
    assert routed["task"] == 1.0
    assert 0.4 < routed["sample"] < 0.9  # chance is 0.2
    assert paper.units["task"].accuracy == paper.routing.oracle_after[-1]


def test_false_alarms_have_the_target_rate(routing: RoutingResult) -> None:
    assert all(rate is not None and rate < 0.1 for rate in routing.novelty.false_alarms)
    *before, last = routing.novelty.auroc
    assert all(auroc is not None and auroc > 0.85 for auroc in before)
    assert last is None


def test_adapters_forget_nothing_and_fine_tuning_much(out: Path, routing: RoutingResult) -> None:
    assert (routing.oracle_after[-1] or 0) >= 0.97
    assert baseline(out, "joint-gaussian").units["sample"].accuracy >= 0.95
    fine_tuned = baseline(out, "finetune").units["sample"]
    assert fine_tuned.accuracy < 0.5
    assert (fine_tuned.forgetting or 0) > 0.4


def test_matrix_and_curve_agree(result: RunResult) -> None:
    sample = result.units["sample"]
    for i, row in enumerate(sample.matrix):
        learned = [value for value in row[: i + 1] if value is not None]
        assert row[i + 1 :] == (None,) * (4 - i)
        assert sample.accuracy_after[i] == pytest.approx(sum(learned) / (i + 1))


def test_footprint_by_hand(result: RunResult) -> None:
    """One adapter; class statistics for the router (384 features) and the classifier (960)."""
    footprint = result.footprint
    rank, layers, dim = 8, 6, 96
    assert footprint.adapters == 4 * layers * 2 * dim * rank
    assert footprint.heads == 0
    expected = 0
    for features, most in ((2 * 2 * dim, (64, 8)), (5 * 2 * dim, (128, 20))):
        for i, task in enumerate(result.tasks):
            vectors = min(most[i > 0], task.train // 6)
            expected += 2 + 2 * features + vectors * (features + 1)
        expected += features + features * (features - 1) // 2 + 3  # count, temperature, views
    features = 2 * 2 * dim
    domain = 1 + features + features + features * (features - 1) // 2 + 10
    assert footprint.routers == expected + domain
    assert footprint.replay_bytes == 0
    assert footprint.parameters == footprint.adapters + footprint.routers
    assert footprint.bytes < 4 * footprint.parameters, "correlations are in half precision"


def test_plots_and_page_are_written(out: Path) -> None:
    names = {path.name for path in (out / "report").iterdir() if path.stat().st_size > 1000}
    for name in ("accuracy", "methods", "accuracy-matrix", "confusion", "router-scores"):
        assert {f"digits-5-bundled-{name}.png", f"digits-5-bundled-{name}.svg"} <= names
    assert "100.0" in (out / "report/report.html").read_text()


def test_the_model_of_the_run_predicts(out: Path) -> None:
    test = load("digits").test
    answers = RememberingTransformer.load(out / "model").predict(test.images).labels
    assert accuracy(answers, test.labels.tolist()) > 0.93


def test_under_a_capacity(tmp_path: Path) -> None:
    capacity = 2
    paper = "--adapters task --rank 4 --epochs 10 --lr 3e-3 --schedule constant --augment none "
    paper += "--classifier.kind head --router.kind autoencoder --router.epochs 50"
    run(tmp_path, f"--capacity {capacity} {paper} --baselines")
    result = read_result(tmp_path / "results.json")
    manifest = read_manifest(tmp_path / "model")
    assert len(manifest.adapters) == capacity
    assert {str(task.adapter) for task in manifest.tasks} == set(manifest.adapters)
    assert result.routing is not None
    assert (result.routing.oracle_after[-1] or 0) > 0.85
    assert result.footprint.adapters == capacity * 4 * 6 * 2 * 96 * 4
    assert result.footprint.replay_bytes > 0


def test_several_seeds_are_averaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, f"--seeds 0,1 {TINY}")
    assert "seeds 0, 1" in " ".join(capsys.readouterr().out.split())
    results = [read_result(path) for path in sorted(tmp_path.rglob("results.json"))]
    assert [result.seed for result in results] == [0, 1]
    assert results[0].config.command == ("run", "digits-5", *TINY.split())
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

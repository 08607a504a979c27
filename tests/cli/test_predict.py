"""`remember predict`: table, JSON and CSV; files with hostile names; unreadable files."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remembering.cli import main, predict
from remembering.inference.prediction import Prediction
from remembering.model import RememberingTransformer

from .example import class_folder, fails

pytestmark = pytest.mark.unit


def predicted(
    arguments: list[object], capsys: pytest.CaptureFixture[str]
) -> pytest.CaptureResult[str]:
    assert main(["predict", *map(str, arguments)]) == 0
    return capsys.readouterr()


def test_table(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = predicted([trained / "model", trained / "pets" / "cat"], capsys).out
    for word in ("0.png", "label", "probability", "task", "pets", "adapter"):
        assert word in out
    assert "p-value" not in out


def test_json_has_the_values_of_the_prediction(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained / "pets" / "cat"
    rows = json.loads(predicted([trained / "model", folder, "--json"], capsys).out)
    expected = RememberingTransformer.load(trained / "model").predict(sorted(folder.iterdir()))
    assert [Path(row["file"]).name for row in rows] == ["0.png", "1.png", "2.png"]
    assert [row["label"] for row in rows] == expected.labels
    assert [row["score"] for row in rows] == expected.scores[:, 0].tolist()
    assert list(rows[0]) == ["file", "label", "probability", "task", "adapter", "score"]


def test_csv_has_the_fields_of_json(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [trained / "model", trained / "pets" / "cat", "--together", "--top-k", "2"]
    rows = json.loads(predicted([*arguments, "--json"], capsys).out)
    table = list(csv.DictReader(io.StringIO(predicted([*arguments, "--csv"], capsys).out)))
    for row, cells in zip(rows, table, strict=True):
        top = row.pop("top")
        assert top[0] == {"label": row["label"], "probability": row["probability"]}
        row |= {"label_2": top[1]["label"], "probability_2": top[1]["probability"]}
        assert cells == {name: str(value) for name, value in row.items()}


def test_top_k(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = trained / "pets" / "cat" / "0.png"
    (row,) = json.loads(predicted([trained / "model", image, "--json", "--top-k", "9"], capsys).out)
    assert {entry["label"] for entry in row["top"]} == {"cat", "dog"}
    assert sum(entry["probability"] for entry in row["top"]) == pytest.approx(1, abs=1e-5)
    assert "next labels" in predicted([trained / "model", image, "--top-k", "2"], capsys).out
    fails(["predict", trained / "model", image, "--top-k", "0"], capsys, "--top-k 0")


def test_false_alarm_rate(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, folder = trained / "model", trained / "pets" / "cat"
    arguments = [model, folder, "--false-alarm-rate", "0.3"]
    rows = json.loads(predicted([*arguments, "--json"], capsys).out)
    assert all(0 < row["p_value"] <= 1 for row in rows)
    assert all(row["unknown"] == (row["p_value"] <= 0.3) for row in rows)
    assert "p-value" in predicted([*arguments, "--together"], capsys).out
    wrong = ["predict", model, folder, "--false-alarm-rate", "2"]
    fails(wrong, capsys, "false_alarm_rate = 2", "between 0 and 1")


def test_folders_are_walked(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(predicted([trained / "model", trained / "pets", "--json"], capsys).out)
    names = [Path(row["file"]).relative_to(trained).as_posix() for row in rows]
    assert names == [f"pets/{label}/{i}.png" for label in ("cat", "dog") for i in range(3)]


def test_explain(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [trained / "model", trained / "pets" / "cat", "--explain"]
    rows = json.loads(predicted([*arguments, "--json"], capsys).out)
    out = predicted(arguments, capsys).out
    for row in rows:
        assert row["file"] in out
        assert f"The most probable class is '{row['label']}'" in row["explanation"]
        assert "p-value" in row["explanation"]
        for line in row["explanation"].splitlines():
            assert f"  {line}\n" in out


def test_strict(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pets" / "cat" / "bad.png").write_bytes(b"nothing")
    fails(["predict", model, tmp_path / "pets", "--strict"], capsys, "bad.png is not an image")


def test_unreadable_files_of_a_folder_are_skipped(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pets" / "cat"
    (folder / "bad.png").write_bytes(b"nothing")
    captured = predicted([model, folder, "--json"], capsys)
    assert len(json.loads(captured.out)) == 3
    assert "skipped: " in captured.err
    assert "bad.png is not an image" in captured.err


def test_an_unreadable_file_that_was_named_is_an_error(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pets" / "cat"
    (folder / "bad.png").write_bytes(b"nothing")
    assert main(["predict", str(model), str(folder / "bad.png"), str(folder / "0.png")]) == 1
    captured = capsys.readouterr()
    assert "bad.png is not an image" in captured.err
    assert "0.png" in captured.out, "the other files are answered"


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_answers_are_printed_before_the_next_files_are_read(
    form: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is kept of earlier files: memory does not grow with their number."""
    files = sorted((tmp_path / "pets").rglob("*.png"))
    files[3].write_bytes(b"nothing")
    printed: list[str] = []
    original = RememberingTransformer.predict

    def observed(self: RememberingTransformer, *arguments: Any, **options: Any) -> Prediction:
        printed.append(capsys.readouterr().out)
        return original(self, *arguments, **options)

    monkeypatch.setattr(predict, "_CHUNK", 2)
    monkeypatch.setattr(RememberingTransformer, "predict", observed)
    assert main(["predict", str(model), *map(str, files), form]) == 1, "a named file is damaged"
    printed.append(capsys.readouterr().out)
    shown = [[file for file in files if str(file) in text] for text in printed]
    # The second chunk is answered twice, the second time without the damaged file.
    assert shown == [[], files[:2], [], files[2:3], files[4:]]
    if form == "--json":
        rows = json.loads("".join(printed))
        assert [row["file"] for row in rows] == [str(f) for f in files if f != files[3]]


def test_many_files_are_printed_as_several_tables(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "_CHUNK", 2)
    out = predicted([trained / "model", trained / "pets" / "cat"], capsys).out
    assert out.count("probability") == 2
    assert [name for name in ("0.png", "1.png", "2.png") if out.count(name) != 1] == []


def test_folders_are_routed_together_one_after_the_other(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cats, dogs = (sorted((trained / "pets" / name).iterdir()) for name in ("cat", "dog"))
    arguments = [trained / "model", cats[0], *dogs, cats[1], "--together", "--json"]
    rows = json.loads(predicted(arguments, capsys).out)
    assert [row["file"] for row in rows] == [str(file) for file in (*cats[:2], *dogs)]


def test_wrong_arguments(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = trained / "model"
    fails(["predict", model, model, "--json", "--csv"], capsys, "exclude each other")
    fails(["predict", model, trained / "none.png"], capsys, "does not exist")
    fails(["predict", model, model], capsys, "no images in")
    fails(["predict", model], capsys, "no images are given")


class TestFileNames:
    NAMES = ("caf\udce9.png", "\x1b]0;owned\x07.png", "=HYPERLINK(1).png", "plain.png")

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Images whose names are not UTF-8, contain control characters, or are formulas."""
        image = class_folder(tmp_path / "x", ("a",)) / "a" / "0.png"
        folder = tmp_path / "names"
        folder.mkdir()
        for name in self.NAMES:
            try:
                (folder / name).write_bytes(image.read_bytes())
            except OSError:
                pytest.skip("the file system refuses such names")
        return folder

    @pytest.fixture
    def predict(
        self, trained: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[..., str]:
        """Return a function that returns what is printed to a strict UTF-8 pipe."""

        def run(*options: str) -> str:
            pipe = io.BytesIO()
            monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe, "utf-8", errors="strict"))
            assert main(["predict", str(trained / "model"), ".", *options]) == 0
            sys.stdout.flush()
            return pipe.getvalue().decode()

        monkeypatch.chdir(folder)
        return run

    def test_json_is_exact(self, predict: Callable[..., str]) -> None:
        assert sorted(row["file"] for row in json.loads(predict("--json"))) == sorted(self.NAMES)

    def test_csv_is_escaped(self, predict: Callable[..., str]) -> None:
        names = {row["file"] for row in csv.DictReader(io.StringIO(predict("--csv")))}
        assert names == {
            "caf\\xe9.png",
            "\\x1b]0;owned\\x07.png",
            "'=HYPERLINK(1).png",
            "plain.png",
        }

    def test_the_table_is_escaped(self, predict: Callable[..., str]) -> None:
        out = predict()
        for name in ("caf\\xe9.png", "\\x1b]0;owned\\x07.png", "=HYPERLINK(1).png", "plain.png"):
            assert name in out
        assert "\x1b" not in out

    def test_messages_are_escaped(
        self, trained: Path, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "\x1b[31m\udcff.png").write_bytes(b"nothing")
        err = predicted([trained / "model", folder, "--json"], capsys).err
        assert "\\x1b[31m\\xff.png is not an image" in err
        assert "\x1b" not in err

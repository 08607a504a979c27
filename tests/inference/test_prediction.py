"""A prediction as a sequence of answers, as a data frame, and in words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import learned, make_task, png

from remembering import RememberingTransformer
from remembering.backbones.backbone import Backbone
from remembering.errors import InvalidFileError, RememberingError
from remembering.inference.prediction import Answer, Prediction


@pytest.fixture(scope="module")
def prediction(model: RememberingTransformer) -> Prediction:
    return model.predict(make_task(0).images, false_alarm_rate=0.3, top_k=2)


def test_answers(prediction: Prediction) -> None:
    assert len(prediction) == len(list(prediction)) == 12
    for i, answer in enumerate(prediction):
        assert answer == prediction[i] == prediction[i - 12]
        assert answer == Answer(
            prediction.labels[i],
            float(prediction.probabilities[i].max()),
            prediction.tasks[i],
            int(prediction.adapters[i]),
            float(prediction.novelty[i]),  # type: ignore[index]
            bool(prediction.unknown[i]),  # type: ignore[index]
        )
    with pytest.raises(IndexError, match="no answer 12; the prediction has 12"):
        prediction[12]


@pytest.mark.parametrize("index", [slice(2, 5), slice(None, None, -1), slice(0, 0), slice(3, None)])
def test_slices(prediction: Prediction, index: slice) -> None:
    part = prediction[index]
    assert list(part) == list(prediction)[index]
    assert part.classes == prediction.classes
    assert part.probabilities.shape == (len(part), 4)
    assert part.scores.shape == (len(part), 2)
    assert part.top_k == (prediction.top_k or [])[index]


def test_top(prediction: Prediction) -> None:
    for answer, best in zip(prediction, prediction.top(2), strict=True):
        assert best[0] == (answer.label, pytest.approx(answer.probability))
        assert len(best) == 2
    assert len(prediction.top(99)[0]) == 4, "all classes"
    with pytest.raises(RememberingError, match="k = 0 must be at least 1"):
        prediction.top(0)


def test_repr_is_short(prediction: Prediction) -> None:
    assert repr(prediction[:1]) == f"Prediction(1 image: {prediction.labels[0]!r})"
    assert repr(prediction[:2]) == f"Prediction(2 images: {str(prediction.labels[:2])[1:-1]})"
    assert len(repr(prediction)) < 80


def test_data_frame(prediction: Prediction, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = prediction.to_pandas()
    assert list(frame) == ["label", "probability", "task", "adapter", "p_value", "unknown"]
    assert frame["label"].tolist() == prediction.labels
    assert frame["unknown"].tolist() == prediction.unknown.tolist()  # type: ignore[union-attr]
    assert len(prediction[:0].to_pandas()) == 0
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(RememberingError, match="pip install pandas"):
        prediction.to_pandas()


@pytest.fixture(scope="module")
def model(backbone: Backbone) -> RememberingTransformer:
    return learned(backbone, 2)


class TestFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("b/1.png", "a/2.png", "0.png"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(png(90, 16))
        return tmp_path

    @pytest.mark.parametrize("kind", [str, Path])
    def test_a_folder(self, model: RememberingTransformer, folder: Path, kind: Any) -> None:
        prediction = model.predict(kind(folder))
        names = [str(folder / name) for name in ("0.png", "a/2.png", "b/1.png")]
        assert prediction.files == names
        assert [answer.file for answer in prediction] == names
        assert prediction[1:].files == names[1:]
        frame = prediction.to_pandas()
        assert list(frame)[:2] == ["file", "label"]
        assert frame["file"].tolist() == names

    def test_unreadable_files_of_a_folder_are_left_out(
        self, model: RememberingTransformer, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (folder / "a" / "1.png").write_bytes(b"nothing")
        assert model.predict(folder).files == [
            str(folder / name) for name in ("0.png", "a/2.png", "b/1.png")
        ]
        assert "a/1.png is not an image" in caplog.text
        with pytest.raises(InvalidFileError, match=r"a/1.png is not an image"):
            model.predict(folder / "a" / "1.png")

    def test_a_file_a_table_and_nothing(self, model: RememberingTransformer, folder: Path) -> None:
        assert model.predict(str(folder / "0.png")).files == [str(folder / "0.png")]
        (folder / "list.csv").write_text("path\nb/1.png\n0.png\n")
        assert model.predict(folder / "list.csv").files == [
            str(folder / name) for name in ("b/1.png", "0.png")
        ]
        with pytest.raises(InvalidFileError, match="nowhere does not exist"):
            model.predict(folder / "nowhere")
        (folder / "empty").mkdir()
        with pytest.raises(InvalidFileError, match=r"no images in .*empty"):
            model.predict(folder / "empty")

    def test_other_images_have_no_files(self, prediction: Prediction) -> None:
        assert prediction.files is None


def test_the_batch_size_does_not_change_answers(model: RememberingTransformer) -> None:
    images = make_task(1).images
    groups = [i % 2 for i in range(len(images))]
    for options in ({}, {"groups": groups}):
        whole = model.predict(images, false_alarm_rate=0.1, **options)  # type: ignore[arg-type]
        for size in (1, 5, 64):
            part = model.predict(
                images,
                false_alarm_rate=0.1,
                batch_size=size,
                **options,  # type: ignore[arg-type]
            )
            assert part.labels == whole.labels
            torch.testing.assert_close(part.probabilities, whole.probabilities)
    with pytest.raises(RememberingError, match="batch_size = 0 must be at least 1"):
        model.predict(images, batch_size=0)


def test_without_a_false_alarm_rate(backbone: Backbone) -> None:
    plain = learned(backbone, 1).predict(make_task(0).images[torch.arange(2)])
    assert plain[0].p_value is plain[0].unknown is None
    assert list(plain.to_pandas()) == ["label", "probability", "task", "adapter"]
    assert "p-value" not in plain.explain(0)
    assert "by task" not in plain.explain(0), "there is one task"


def test_explanations_name_candidates_and_tasks(prediction: Prediction) -> None:
    for i, answer in enumerate(prediction):
        text = prediction.explain(i, k=2)
        assert f"most probable class is '{answer.label}' ({100 * answer.probability:.1f} %)" in text
        assert f"belongs to the task '{answer.task}'" in text
        assert "'task 0'" in text
        assert "'task 1'" in text
        assert f"p-value {answer.p_value:.2g}" in text
        assert ("not flagged" in text) != answer.unknown
    assert "next candidates" not in prediction.explain(0, k=1)

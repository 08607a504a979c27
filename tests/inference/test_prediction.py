"""A prediction as a sequence of answers, as a data frame, and in words."""

from __future__ import annotations

import sys

import pytest
import torch
from support import learned, make_task

from remembering.backbones.backbone import Backbone
from remembering.errors import RememberingError
from remembering.inference.prediction import Answer, Prediction


@pytest.fixture(scope="module")
def prediction(backbone: Backbone) -> Prediction:
    images = make_task(0).images
    return learned(backbone, 2).predict(images, false_alarm_rate=0.3, top_k=2)


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
    with pytest.raises(IndexError):
        prediction[12]


@pytest.mark.parametrize("index", [slice(2, 5), slice(None, None, -1), slice(0, 0), slice(3, None)])
def test_slices(prediction: Prediction, index: slice) -> None:
    part = prediction[index]
    assert list(part) == list(prediction)[index]
    assert part.classes == prediction.classes
    assert part.probabilities.shape == (len(part), 4)
    assert part.scores.shape == (len(part), 2)
    assert part.top_k == (prediction.top_k or [])[index]


def test_repr_is_short(prediction: Prediction) -> None:
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

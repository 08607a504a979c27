"""Predictions run in other threads while tasks are learned and forgotten."""

from __future__ import annotations

import threading

import torch
from support import TWO_LEVEL, learned, make_task

from remembering.backbones.backbone import Backbone


def test_every_answer_is_that_of_the_state_before_or_after(backbone: Backbone) -> None:
    model = learned(backbone, 1, **TWO_LEVEL)
    images = torch.cat([make_task(i).images for i in range(3)])
    states, predictions, stop = [model.state], [], threading.Event()

    def ask() -> None:
        while not stop.is_set():
            predictions.append(model.predict(images, false_alarm_rate=0.05))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in (1, 2):
            model.learn(make_task(number, (f"a{number}", f"b{number}")))
            states.append(model.state)
        model.forget("task 1")
        states.append(model.state)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    expected = [
        type(model)(backbone, state=state).predict(images, false_alarm_rate=0.05)
        for state in states
    ]
    for prediction in predictions:
        assert any(
            prediction.classes == other.classes
            and torch.equal(prediction.probabilities, other.probabilities)
            and torch.equal(prediction.scores, other.scores)
            and torch.equal(prediction.novelty, other.novelty)
            for other in expected
        )
    assert len({prediction.classes for prediction in predictions}) > 1, "states were swapped"

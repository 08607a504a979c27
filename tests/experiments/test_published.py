"""The paper's numbers, checked against the sums that the paper itself prints."""

from __future__ import annotations

import pytest

from remembering.experiments.published import FOOTPRINTS, SPLIT_TASKS, TABLE_1, published_for

AVERAGES = {
    "SupSup": 23.87,
    "BI-R+SI": 27.83,
    "HyperNet": 32.17,
    "MUC": 32.67,
    "OWM": 34.97,  # the paper prints 35.63, which is not the mean of the row that it prints
    "PASS": 36.47,
    "LwF": 48.10,
    "iCaRL": 54.20,
    "Mnemonics": 54.23,
    "DER++": 55.97,
    "IL2A": 70.07,
    "CLOM": 70.40,
    "SSRE": 72.40,
    "FeTrIL": 72.53,
    "Ours": 88.43,
}


@pytest.mark.parametrize("method", AVERAGES)
def test_table_1_adds_up_to_its_printed_average(method: str) -> None:
    row = [TABLE_1[method][split].accuracy for split in SPLIT_TASKS.values()]
    assert sum(row) / 3 == pytest.approx(AVERAGES[method], abs=0.006)


def test_table_1_is_complete() -> None:
    assert TABLE_1.keys() == AVERAGES.keys()


@pytest.mark.parametrize(
    ("experiment", "variant", "accuracy", "where"),
    [
        ("cifar10-5", None, 99.3, "Table 1"),
        ("cifar100-10", None, 86.1, "Table 1"),
        ("cifar100-20", None, 79.9, "Table 1"),
        ("cifar10-5", "E=5", 99.3, "Table 2"),
        ("cifar10-5", "E=3", 93.2, "Table 2"),
        ("cifar10-5", "E=2", 87.1, "Table 2"),
        ("cifar10-5", "M=256", 90.5, "Table 3"),
        ("paper/capacity", "E=2", 87.1, "Table 2"),
        ("cifar10-5", "E=3, M=128", 86.6, "Table 3"),
    ],
)
def test_lookup(experiment: str, variant: str | None, accuracy: float, where: str) -> None:
    found = published_for(experiment, variant)
    assert found is not None
    assert (found.accuracy, found.where, found.unit) == (accuracy, where, "task")


@pytest.mark.parametrize(
    ("experiment", "variant"),
    [
        ("digits", None),
        ("cifar10-5-deep", None),
        ("cifar10-50", "E=3"),
        ("cifar10-5", "E=4"),
        ("cifar10-5", "E=2, M=256"),
        ("cifar10-5", "rank=4"),
        ("cifar10-5", "deep"),
        ("cifar100-10", "E=3"),
    ],
)
def test_nothing_is_claimed_that_the_paper_does_not_print(
    experiment: str, variant: str | None
) -> None:
    assert published_for(experiment, variant) is None


def test_footprints_are_what_the_formula_gives() -> None:
    one_adapter = 4 * 12 * 2 * 768 * 1
    for item in FOOTPRINTS:
        if item.method.startswith("Ours"):
            adapters = int(item.method[-1])
            assert item.millions == pytest.approx(adapters * one_adapter / 1e6, abs=0.005)

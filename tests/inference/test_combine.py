"""Router and adapter probabilities are combined."""

from __future__ import annotations

import torch

from remembering.inference.combine import combine
from remembering.state import RouterColumns

# Two tasks share the label "x"; adapter 0 serves the first, adapter 1 the second.
COLUMNS = RouterColumns(torch.tensor([0, 1, 0, 2]), torch.tensor([0, 0, 1, 1]))
ROUTER = torch.tensor([[0.4, 0.2, 0.1, 0.3]], dtype=torch.float64).log()
ADAPTER = torch.tensor([[0.25, 0.75, 0.0]])


def test_within_the_chosen_adapter_probabilities_are_multiplied() -> None:
    prediction = combine(ADAPTER, ROUTER, COLUMNS, torch.tensor([0]), hard_routing=True)
    both = torch.tensor([0.4 * 0.25, 0.2 * 0.75, 0.0])
    torch.testing.assert_close(prediction[0], both / both.sum())


def test_the_other_tasks_keep_the_probability_of_the_router() -> None:
    prediction = combine(ADAPTER, ROUTER, COLUMNS, torch.tensor([0]), hard_routing=False)
    expected = torch.tensor([0.6 * 0.4 + 0.1, 0.6 * 0.6, 0.3])
    torch.testing.assert_close(prediction[0], expected)
    torch.testing.assert_close(prediction.sum(1), torch.ones(1))


def test_each_image_by_itself() -> None:
    adapter = torch.cat([ADAPTER, torch.tensor([[0.5, 0.0, 0.5]])])
    router, chosen = ROUTER.expand(2, -1), torch.tensor([0, 1])
    together = combine(adapter, router, COLUMNS, chosen, hard_routing=False)
    for i in range(2):
        alone = combine(adapter[i : i + 1], ROUTER, COLUMNS, chosen[i : i + 1], hard_routing=False)
        assert torch.equal(together[i], alone[0])

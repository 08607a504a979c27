"""Combine the class probabilities of the router and of the chosen adapter."""

from __future__ import annotations

from torch import Tensor

from remembering.state import RouterColumns


def combine(
    adapter: Tensor, router: Tensor, columns: RouterColumns, chosen: Tensor, hard_routing: bool
) -> Tensor:
    """Return probabilities (n, labels) of images whose adapter is chosen.

    Within the classes of the chosen adapter, P(c | adapter) ∝ P_router(c) · P_adapter(c). All other
    classes keep the probability that the router assigns to them, unless routing is hard.

    Args:
        adapter: (n, labels), 0 for labels that the chosen adapter does not have.
        router: Log-likelihoods (n, columns) of all classes of all tasks.
        columns: What the router's columns stand for.
        chosen: Adapter number of each image, (n,).
        hard_routing: Whether classes of other adapters are excluded (images routed in groups).
    """
    posterior = router.softmax(1)
    own = columns.adapter.to(chosen.device) == chosen[:, None]
    label = columns.label.to(posterior.device)
    zeros = adapter.new_zeros(adapter.shape, dtype=posterior.dtype)
    outside = zeros.index_add(1, label, posterior.masked_fill(own, 0))
    inside = zeros.index_add(1, label, router.masked_fill(~own, float("-inf")).softmax(1))
    product = inside * adapter
    product = product / product.sum(1, keepdim=True).clamp_min(1e-300)
    if hard_routing:
        return product.to(adapter.dtype)
    share = posterior.masked_fill(~own, 0).sum(1, keepdim=True)
    return (share * product + outside).to(adapter.dtype)

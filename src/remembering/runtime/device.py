"""Devices that users name."""

from __future__ import annotations

import torch

from remembering.errors import InvalidInputError, reason


def usable_device(device: str | torch.device) -> torch.device:
    """Return a device by name, such as "cpu" or "cuda:1".

    Raises:
        InvalidInputError: If there is no such device on this machine.
    """
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        why = reason(error).partition(". ")[0]
        raise InvalidInputError(
            f"the device '{device}' cannot be used{f' ({why})' if len(why) < 80 else ''}; use cpu, "
            "or name none to use a GPU if there is one"
        ) from error
    return found

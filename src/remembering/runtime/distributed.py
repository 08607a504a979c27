"""Distributed execution: how work is divided among processes, and how results are combined.

The default is `SINGLE_PROCESS`, which adds no overhead. Inside `launched()`, `current()` returns
what torchrun or `accelerate launch` configured, on top of Hugging Face accelerate. All processes
execute the same program, and the combined results are identical in all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from remembering.errors import RememberingError, reason
from remembering.runtime.mmap_buffer import allocate

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")

SENT_BYTES = 16 * 1024**2
"""Large tensors are sent in parts of this size."""
TIMEOUT = timedelta(hours=1)
"""How long a process waits for another one that does not respond."""


class Distributed:
    """A single process; subclasses divide the work among several.

    Attributes:
        rank: Index of this process.
        processes: Number of processes.
        accumulation_steps: Number of parts into which a process splits its share of a training
            batch; gradients are accumulated over them.
    """

    rank = 0
    processes = 1
    accumulation_steps = 1

    @property
    def main(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """The device of this process: a GPU if there is one."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def about(self) -> dict[str, str | int]:
        """Return what results depend on: number of processes and precision."""
        return {"processes": self.processes, "mixed_precision": "no"}

    def split(self, index: Tensor) -> tuple[Tensor, ...]:
        """Return this process's share of a training batch, split for accumulation.

        A process may receive nothing of a small batch.
        """
        own = index.tensor_split(self.processes)[self.rank]
        return tuple(part for part in own.tensor_split(self.accumulation_steps) if len(part))

    def share(self, batches: Iterable[Tensor]) -> list[Tensor]:
        """Return this process's share of a pass over images: consecutive whole batches.

        Batches stay whole, so that the results have the same bits as in a single process.
        """
        every = list(batches)
        first, last = (len(every) * (self.rank + i) // self.processes for i in (0, 1))
        return every[first:last]

    def rows(self, batches: Iterable[Tensor], compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `compute` to all batches of positions, and return the rows in their order.

        Args:
            batches: Positions, in batches.
            compute: Maps n positions to a tensor with n rows.
        """
        every = list(batches)
        parts = [compute(index) for index in self.share(every)]
        # A process without a share still has to know the shape of a row.
        return self.all_gather(torch.cat(parts) if parts else compute(every[0][:1])[:0])

    def all_gather(self, rows: Tensor) -> Tensor:
        """Concatenate the rows of all processes, in the order of their ranks."""
        return rows

    def start(self, count: int) -> int:
        """Return the position of this process's first row among all, if it has `count` rows."""
        return 0

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes."""
        return tensor

    def reduce_gradients(self, parameters: Sequence[Tensor], loss: Tensor) -> Tensor:
        """Sum gradients over all processes, in place, and return the sum of the losses."""
        return loss

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy the main process's values to all processes, in place."""

    def on_main(self, function: Callable[[], T]) -> T:
        """Call a function in the main process only, and return its result in all processes.

        If it raises, the main process raises and the others exit.
        """
        return function()

    def agree(self, value: T, what: str) -> T:
        """Return the value, after checking that all processes have the same one.

        Args:
            value: The value of this process.
            what: What it is, for the error.

        Raises:
            RememberingError: If it differs from the main process's value.
        """
        return value

    def local_main_first(self) -> AbstractContextManager[None]:
        """Return a context that one process per machine enters first, for downloads."""
        return nullcontext()

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context for mixed precision, if it is configured."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients."""
        loss.backward()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take an optimiser step."""
        optimizer.step()


class Accelerated(Distributed):
    """Several processes, mixed precision or accumulation, as accelerate was configured."""

    def __init__(self, accelerator: Accelerator):
        self._accelerator = accelerator
        self.rank = accelerator.process_index
        self.processes = accelerator.num_processes
        self.accumulation_steps = accelerator.gradient_accumulation_steps

    @property
    def device(self) -> torch.device:
        device: torch.device = self._accelerator.device
        return device

    def about(self) -> dict[str, str | int]:
        precision = str(self._accelerator.mixed_precision)
        return {"processes": self.processes, "mixed_precision": precision}

    def all_gather(self, rows: Tensor) -> Tensor:
        if self.processes == 1:
            return rows
        sizes = self._sizes(len(rows))
        starts = [sum(sizes[:i]) for i in range(self.processes)]
        on_cpu = rows.device.type == "cpu"  # then the result may exceed the memory
        whole = (
            allocate(sum(sizes), rows) if on_cpu else rows.new_empty(sum(sizes), *rows.shape[1:])
        )
        step = max(1, SENT_BYTES // max(1, whole[:1].nbytes))
        for first in range(0, max(sizes), step):  # in parts, to avoid two temporary copies
            part = rows.new_zeros(step, *rows.shape[1:], device=self.device)
            part[: len(rows[first : first + step])] = rows[first : first + step]
            with _collective():
                parts = self._accelerator.gather(part).split(step)
            for part, start, size in zip(parts, starts, sizes, strict=True):
                count = max(0, min(step, size - first))
                whole[start + first : start + first + count] = part[:count]
        return whole

    def start(self, count: int) -> int:
        return sum(self._sizes(count)[: self.rank])

    def all_reduce(self, tensor: Tensor) -> Tensor:
        if self.processes == 1:
            return tensor
        with _collective():
            summed: Tensor = self._accelerator.reduce(tensor.to(self.device), "sum")
        return summed.to(tensor.device)

    def reduce_gradients(self, parameters: Sequence[Tensor], loss: Tensor) -> Tensor:
        if self.processes == 1:
            return loss
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        # One buffer, so that a step synchronises once.
        flat = self.all_reduce(torch.cat([*(g.flatten() for g in gradients), loss.reshape(1)]))
        for p, part in zip(
            parameters, flat[:-1].split([p.numel() for p in parameters]), strict=True
        ):
            p.grad = part.view_as(p).clone()
        return flat[-1]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        if self.processes == 1:
            return
        from accelerate.utils import broadcast

        with _collective(), torch.no_grad():
            for tensor in tensors:
                tensor.copy_(broadcast(tensor.detach().to(self.device, copy=True).contiguous()))

    def on_main(self, function: Callable[[], T]) -> T:
        if self.processes == 1:
            return function()
        outcome: list[Any] = [False, None]
        try:
            if self.main:
                outcome = [True, function()]
        except Exception:
            self._send(outcome)
            raise
        done, value = self._send(outcome)
        if not done:
            raise SystemExit(1)  # the main process reports the reason
        result: T = value
        return result

    def agree(self, value: T, what: str) -> T:
        if self.on_main(lambda: value) != value:
            raise RememberingError(
                f"process {self.rank} finds another {what} than the main process; use an --out "
                "folder that all machines share"
            )
        return value

    def local_main_first(self) -> AbstractContextManager[None]:
        first: AbstractContextManager[None] = self._accelerator.local_main_process_first()
        return first

    def autocast(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self._accelerator.autocast()
        return context

    def backward(self, loss: Tensor) -> None:
        scaler = self._accelerator.scaler  # float16 needs one
        (loss if scaler is None else scaler.scale(loss)).backward()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        scaler = self._accelerator.scaler
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        with _collective():
            self._accelerator.wait_for_everyone()

    def leave(self, failed: bool = False) -> None:
        """Leave the process group; otherwise the exit of a process may hang or abort."""
        # Leaving an NCCL group is collective, which is impossible after a failure.
        if not failed or self._accelerator.state.backend == "gloo":
            self._accelerator.end_training()

    def _sizes(self, count: int) -> list[int]:
        """Return the `count` of each process."""
        with _collective():
            sizes: list[int] = self._accelerator.gather(
                torch.tensor([count], device=self.device)
            ).tolist()
        return sizes

    def _send(self, outcome: list[Any]) -> list[Any]:
        from accelerate.utils import broadcast_object_list

        with _collective():
            sent: list[Any] = broadcast_object_list(outcome)
        return sent


SINGLE_PROCESS = Distributed()
_current: Distributed = SINGLE_PROCESS


def current() -> Distributed:
    """Return how work is executed at present."""
    return _current


def launched_processes() -> int:
    """Return the number of processes that a launcher has started."""
    return int(os.environ.get("WORLD_SIZE") or 1)


@contextmanager
def launched() -> Iterator[Distributed]:
    """Execute work as torchrun, `accelerate launch` or accelerate's environment configures it.

    Without any of them, a single process is used and accelerate is not imported.

    Raises:
        RememberingError: If accelerate does not support the configuration.
    """
    if launched_processes() == 1 and not any(name.startswith("ACCELERATE_") for name in os.environ):
        yield SINGLE_PROCESS
        return
    global _current
    _current = distributed = Accelerated(_accelerator())
    try:
        yield distributed
        distributed.wait()  # not after a failure: the others may wait at another point
    except BaseException:
        distributed.leave(failed=True)
        raise
    finally:
        _current = SINGLE_PROCESS
    distributed.leave()


def _accelerator() -> Accelerator:
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    # Under plain torchrun, accelerate has to be told to use the CPU.
    has_device = getattr(torch, "accelerator", torch.cuda).is_available()
    try:
        accelerator = Accelerator(
            cpu=not has_device, kwargs_handlers=[InitProcessGroupKwargs(timeout=TIMEOUT)]
        )
    except (ValueError, ImportError, NotImplementedError, RuntimeError) as error:
        raise RememberingError(
            f"accelerate does not support this configuration: {reason(error)}"
        ) from error
    precision, steps = accelerator.mixed_precision, accelerator.gradient_accumulation_steps
    wrong = None
    if accelerator.num_processes != launched_processes():
        wrong = (
            f"{launched_processes()} processes were launched, but accelerate sees no devices for "
            "them; set ACCELERATE_USE_CPU=true to use the CPU"
        )
    elif precision not in ("no", "bf16", "fp16"):
        wrong = f"mixed precision {precision} is not supported; use bf16 or fp16"
    elif precision == "fp16" and accelerator.device.type == "cpu":
        wrong = "mixed precision fp16 needs a GPU; use bf16 on the CPU"
    elif steps < 1:
        wrong = f"gradient_accumulation_steps = {steps} must be at least 1"
    if wrong:
        raise RememberingError(wrong)
    return accelerator


@contextmanager
def _collective() -> Iterator[None]:
    """Report the failure of a collective operation, which means that another process ended."""
    try:
        yield
    except RuntimeError as error:
        raise RememberingError(
            "another process has ended, so this one ends, too; see the message of that process "
            f"({str(error).splitlines()[0]})"
        ) from error

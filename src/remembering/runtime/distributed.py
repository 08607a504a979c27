"""Execution in one or several processes: work is divided, and results are put together.

By default `current()` is `SINGLE_PROCESS`, which adds no cost. Inside `launched()` it is what
torchrun or `accelerate launch` has started, run by Hugging Face accelerate. All processes execute
the same code for learning and evaluation, and gathered or reduced values are equal in all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from remembering.errors import RememberingError
from remembering.runtime.mmap_buffer import allocate

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")

SENT_BYTES = 16 * 1024**2
"""Upper bound on the part of a large tensor that is sent at once."""
TIMEOUT = timedelta(hours=1)
"""How long processes wait for one that does not respond."""


class Distributed:
    """A single process."""

    rank = 0
    processes = 1
    accumulation_steps = 1
    """Number of parts that a process divides its share of a training batch into."""

    @property
    def main(self) -> bool:
        """Whether this is the main process, which writes files and prints messages."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """The device of this process: a GPU if there is one."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def about(self) -> dict[str, str | int]:
        """Return what results depend on: the number of processes and their precision."""
        return {"processes": self.processes, "mixed_precision": "no"}

    def split(self, index: Tensor) -> tuple[Tensor, ...]:
        """Return this process's share of a training batch, in parts; none if the batch is small."""
        own = index.tensor_split(self.processes)[self.rank]
        return tuple(part for part in own.tensor_split(self.accumulation_steps) if len(part))

    def share(self, batches: Iterable[Tensor]) -> list[Tensor]:
        """Return this process's share of a pass over images: consecutive batches.

        Batches are not divided, so that an image is computed in the same batch as in a single
        process, with the same bits.
        """
        every = list(batches)
        first, last = (len(every) * (self.rank + i) // self.processes for i in (0, 1))
        return every[first:last]

    def rows(self, batches: Iterable[Tensor], compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the rows that `compute` returns for the positions of all batches, in order."""
        every = list(batches)
        parts = [compute(index) for index in self.share(every)]
        # A process with an empty share still needs the shape of a row.
        return self.all_gather(torch.cat(parts) if parts else compute(every[0][:1])[:0])

    def all_gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, one process after the other."""
        return rows

    def start(self, count: int) -> int:
        """Return the position of this process's first row, if it has `count` rows."""
        return 0

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum over processes."""
        return tensor

    def reduce_gradients(self, parameters: Sequence[Tensor], loss: Tensor) -> Tensor:
        """Sum gradients over processes in place, and return the sum of the losses."""
        return loss

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors of the main process to all processes, in place."""

    def on_main(self, function: Callable[[], T]) -> T:
        """Run a function in the main process; all return its result, or exit if it fails."""
        return function()

    def agree(self, value: T, what: str) -> T:
        """Return the value if all processes have the same one."""
        return value

    def local_main_first(self) -> AbstractContextManager[None]:
        """Let one process of each machine go first, because it may have to download something."""
        return nullcontext()

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context with mixed precision, if configured."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients."""
        loss.backward()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take one step of the optimiser."""
        optimizer.step()


class Accelerated(Distributed):
    """Several processes, or mixed precision, as configured for accelerate."""

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
        on_cpu = rows.device.type == "cpu"  # they may exceed the memory
        whole = (
            allocate(sum(sizes), rows) if on_cpu else rows.new_empty(sum(sizes), *rows.shape[1:])
        )
        step = max(1, SENT_BYTES // max(1, whole[:1].nbytes))
        for first in range(0, max(sizes), step):  # in parts: memory holds one copy, not three
            part = rows.new_zeros(step, *rows.shape[1:], device=self.device)
            part[: len(rows[first : first + step])] = rows[first : first + step]
            with _together():
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
        with _together():
            summed: Tensor = self._accelerator.reduce(tensor.to(self.device), "sum")
        return summed.to(tensor.device)

    def reduce_gradients(self, parameters: Sequence[Tensor], loss: Tensor) -> Tensor:
        if self.processes == 1:
            return loss
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        # One buffer, so that a step waits for the other processes once.
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

        with _together(), torch.no_grad():
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
            raise SystemExit(1)  # the main process says why
        result: T = value
        return result

    def agree(self, value: T, what: str) -> T:
        if self.on_main(lambda: value) != value:
            raise RememberingError(
                f"process {self.rank} finds another {what} than the main process; give an --out "
                "that all machines see"
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
        """Wait until all processes arrive."""
        with _together():
            self._accelerator.wait_for_everyone()

    def leave(self, failed: bool = False) -> None:
        """Leave the process group; without this, the end of a process may hang or abort."""
        # With NCCL all processes leave together, which a failed one cannot request.
        if not failed or self._accelerator.state.backend == "gloo":
            self._accelerator.end_training()

    def _sizes(self, count: int) -> list[int]:
        """Return the `count` of each process."""
        with _together():
            sizes: list[int] = self._accelerator.gather(
                torch.tensor([count], device=self.device)
            ).tolist()
        return sizes

    def _send(self, outcome: list[Any]) -> list[Any]:
        from accelerate.utils import broadcast_object_list

        with _together():
            sent: list[Any] = broadcast_object_list(outcome)
        return sent


SINGLE_PROCESS = Distributed()
_current: Distributed = SINGLE_PROCESS


def current() -> Distributed:
    """Return the active execution context."""
    return _current


def launched_processes() -> int:
    """Return the number of processes that a launcher has started."""
    return int(os.environ.get("WORLD_SIZE") or 1)


@contextmanager
def launched() -> Iterator[Distributed]:
    """Use what torchrun, `accelerate launch` or accelerate's environment variables configure.

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
        distributed.wait()  # not after a failure: the others may wait in another operation
    except BaseException:
        distributed.leave(failed=True)
        raise
    finally:
        _current = SINGLE_PROCESS
    distributed.leave()


def _accelerator() -> Accelerator:
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    # With torchrun alone, accelerate would not choose the CPU.
    has_device = getattr(torch, "accelerator", torch.cuda).is_available()
    try:
        accelerator = Accelerator(
            cpu=not has_device, kwargs_handlers=[InitProcessGroupKwargs(timeout=TIMEOUT)]
        )
    except (ValueError, ImportError, NotImplementedError, RuntimeError) as error:
        raise RememberingError(
            f"accelerate cannot work as it was launched: {' '.join(str(error).split())}"
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
        wrong = f"gradients cannot be accumulated over {steps} parts; give 1 or more"
    if wrong:
        raise RememberingError(wrong)
    return accelerator


@contextmanager
def _together() -> Iterator[None]:
    """Turn the failure of a collective operation into an error that names its cause."""
    try:
        yield
    except RuntimeError as error:
        raise RememberingError(
            "another process has ended, so this one ends, too; see its error message "
            f"({str(error).splitlines()[0]})"
        ) from error

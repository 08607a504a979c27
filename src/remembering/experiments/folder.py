"""The folder of one run: what it was started with, what it has done, and its result.

    config.toml            the settings (`RunConfig`)
    scores.json            scores of the tasks done so far (`RunProgress`)
    model/                 what the learner has learned, `state.safetensors` for baselines
    progress.safetensors   checkpoint within a task, of learners that can resume there
    results.json           the result (`RunResult`), written last
    logs/                  files of a tracker

A process may be killed at any moment: the next one continues after the last task, or within it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from remembering import schema
from remembering.errors import InvalidFileError, RememberingError
from remembering.evaluation.scores import Score
from remembering.experiments.result import RESULTS, RunResult, read_result, write_result
from remembering.experiments.spec import RunConfig
from remembering.learning.checkpoint import NAME as CHECKPOINT
from remembering.learning.checkpoint import Checkpoint
from remembering.runtime.files import remove_unfinished, write_atomic
from remembering.runtime.reading import read_json, read_toml

CONFIG, SCORES, LOGS = "config.toml", "scores.json", "logs"


@dataclass(frozen=True)
class RunProgress:
    """What a run has done so far.

    Attributes:
        scores: After each task.
        seconds_learning: Duration of learning each task.
        seconds: Duration of the run.
    """

    scores: tuple[Score, ...] = ()
    seconds_learning: tuple[float, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run; `state` is the name of what the learner saves."""

    path: Path
    state: str

    @property
    def state_path(self) -> Path:
        """What the learner saves."""
        return self.path / self.state

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return (self.path / RESULTS).is_file()

    @property
    def started(self) -> bool:
        """Whether the folder holds a result, or anything that a run could continue from."""
        return self.done or (self.path / SCORES).is_file() or self.state_path.exists()

    def checkpoint(self, steps: int) -> Checkpoint:
        """Return the checkpoint of the task in training."""
        return Checkpoint(self.path / CHECKPOINT, steps)

    def read_config(self) -> RunConfig | None:
        """Return what the run was started with, if it was."""
        path = self.path / CONFIG
        return read_config(self.path) if path.is_file() else None

    def open(self, config: RunConfig) -> None:
        """Write the settings, after removing files that a killed process left unfinished."""
        remove_unfinished(self.path)
        if self.read_config() != config:
            write_atomic(self.path / CONFIG, tomli_w.dumps(schema.write(config)).encode())

    def read_progress(self) -> RunProgress:
        """Return what the run has done so far.

        Raises:
            RememberingError: If the file is damaged.
        """
        path = self.path / SCORES
        if not path.is_file():
            return RunProgress()
        return schema.read(RunProgress, read_json(path), str(path))

    def write_progress(self, progress: RunProgress) -> None:
        """Write what the run has done so far, atomically."""
        text = json.dumps(schema.write(progress), allow_nan=False)
        write_atomic(self.path / SCORES, text.encode())

    def read_result(self) -> RunResult:
        """Return the result."""
        return read_result(self.path / RESULTS)

    def finish(self, result: RunResult, *, keep_state: bool) -> RunResult:
        """Write the result, then remove what is no longer needed."""
        write_result(self.path / RESULTS, result)
        (self.path / SCORES).unlink(missing_ok=True)
        if not keep_state:
            self.remove_state()
        return result

    def restart(self) -> None:
        """Remove what the run has done so far."""
        (self.path / SCORES).unlink(missing_ok=True)
        self.remove_state()

    def remove_state(self) -> None:
        """Remove what the learner saved."""
        if self.state_path.is_dir():
            shutil.rmtree(self.state_path)
        else:
            self.state_path.unlink(missing_ok=True)


def read_config(folder: Path) -> RunConfig:
    """Return what the run in a folder was started with."""
    path = folder / CONFIG
    try:
        return schema.read(RunConfig, read_toml(path), str(path))
    except InvalidFileError as error:
        raise RememberingError(f"{error}; choose another folder") from error

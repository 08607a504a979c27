"""One writer; a dead one does not block; nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from remembering.cli import main
from remembering.errors import RememberingError
from remembering.runtime.lock import only_writer

HOLD = (
    "import sys, time; from pathlib import Path; from remembering.runtime.lock import only_writer\n"
    "with only_writer(Path(sys.argv[1])):\n"
    "    print('held', flush=True); time.sleep(60)"
)


def test_the_second_writer_is_told_who_holds_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        message = f"process {holder.pid} is writing"
        with pytest.raises(RememberingError, match=message), only_writer(tmp_path):
            pass
        pets = tmp_path.parent / "pets"
        for label in ("cat", "dog"):
            (pets / label).mkdir(parents=True)
            for i in range(2):
                Image.new("L", (8, 8), 9 * i).save(pets / label / f"{i}.png")
        assert main(["learn", str(tmp_path), str(pets)]) == 1
        assert message in capsys.readouterr().err
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with only_writer(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    assert list(tmp_path.iterdir()) == []


def test_it_may_be_taken_again_within_a_process(tmp_path: Path) -> None:
    with only_writer(tmp_path), only_writer(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert not (tmp_path / ".lock").exists()


def test_a_folder_made_for_nothing_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with pytest.raises(RememberingError, match="wrong"), only_writer(folder):
        raise RememberingError("wrong")
    assert not folder.exists()
    with only_writer(folder):
        (folder / "file").touch()
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_an_unwritable_folder_is_named() -> None:
    with pytest.raises(RememberingError, match="cannot be written"), only_writer(Path("/proc/x")):
        pass

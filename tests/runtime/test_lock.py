"""One writer; a dead one does not block; links are refused; nothing is left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support import forked

from remembering.cli import main
from remembering.errors import RememberingError, StorageError
from remembering.runtime.lock import only_writer

pytestmark = pytest.mark.unit
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


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_lock_that_is_a_link_is_refused_and_its_target_kept(link: Any, tmp_path: Path) -> None:
    target = tmp_path / "bashrc"
    target.write_text("precious")
    (tmp_path / "model").mkdir()
    link(tmp_path / "model" / ".lock", target)
    with pytest.raises(StorageError, match=r"\.lock is a"), only_writer(tmp_path / "model"):
        pass
    assert target.read_text() == "precious"
    assert (tmp_path / "model" / ".lock").exists()


def test_a_dangling_link_creates_nothing(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(StorageError, match="symbolic link"), only_writer(tmp_path / "model"):
        pass
    assert not (tmp_path / "target").exists()


def test_a_lock_that_became_a_hard_link_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check and the lock."""
    (tmp_path / "target").write_text("precious")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".lock").hardlink_to(tmp_path / "target")
    monkeypatch.setattr("remembering.runtime.files.SafeFolder.require_plain", lambda *_, **__: None)
    with pytest.raises(StorageError, match="hard link"), only_writer(tmp_path / "model"):
        pass
    assert (tmp_path / "target").read_text() == "precious"


def test_without_locks_writing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    for _ in range(3):
        with only_writer(tmp_path / "model"):
            (tmp_path / "model" / "file").touch()
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["file"]


def test_a_forked_process_does_not_hold_the_lock(tmp_path: Path) -> None:
    def write() -> None:
        with only_writer(tmp_path):
            pass

    with only_writer(tmp_path):
        status, message = forked(write)
        assert (status, f"process {os.getpid()} is writing" in message) == (1, True)
        assert (tmp_path / ".lock").exists()
    assert forked(write) == (0, "")


def test_leaving_in_a_forked_process_keeps_the_lock_of_the_parent(tmp_path: Path) -> None:
    lock = only_writer(tmp_path)
    with lock:
        assert forked(lambda: lock.__exit__(None, None, None) and None) == (0, "")
        assert (tmp_path / ".lock").exists()
        assert forked(lambda: only_writer(tmp_path).__enter__())[0] == 1


def test_another_thread_is_refused(tmp_path: Path) -> None:
    refused: list[str] = []

    def write() -> None:
        try:
            with only_writer(tmp_path):
                pass
        except StorageError as error:
            refused.append(str(error))

    with only_writer(tmp_path):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert [f"process {os.getpid()} is writing" in message for message in refused] == [True]

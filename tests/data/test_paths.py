"""Folders and tables that a user names: class folders, tasks, nesting, unreadable files."""

from __future__ import annotations

import csv
import io
import logging
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from remembering.data.found_images import load_images
from remembering.data.images import ImageFiles
from remembering.data.paths import load_stream, load_tasks
from remembering.data.task import Task
from remembering.errors import InvalidFileError


def draw(path: Path, value: int = 9) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 5), (value, 0, 255 - value)).save(path)
    return path


def content(tasks: list[Task]) -> dict[str, list[str]]:
    """Labels of each task."""
    return {task.name: [str(label) for label in task.labels] for task in tasks}


class TestFolders:
    def test_class_folders_are_one_task(self, tmp_path: Path) -> None:
        for name in ("cat/1.png", "dog/1.png", "dog/close/up/2.png", ".hidden/3.png"):
            draw(tmp_path / "pets" / name)
        assert content(load_tasks(tmp_path / "pets")) == {"pets": ["cat", "dog", "dog"]}

    def test_a_folder_of_such_folders_has_several_tasks(self, tmp_path: Path) -> None:
        for name in ("pets/cat/1", "pets/dog/1", "birds/crow/1", "more/2023/cars/bus/1"):
            draw(tmp_path / f"{name}.png")
        (tmp_path / "notes").mkdir()
        assert content(load_tasks(tmp_path)) == {
            "birds": ["crow"],
            "more/2023/cars": ["bus"],
            "pets": ["cat", "dog"],
        }

    def test_a_folder_of_tasks_is_not_one_task(self, tmp_path: Path) -> None:
        for name in ("pets/cat/1", "birds/crow/1"):
            draw(tmp_path / f"{name}.png")
        with pytest.raises(InvalidFileError, match=r"several tasks.*birds; .*load_tasks"):
            Task.from_folder(tmp_path)

    def test_splits_are_not_tasks(self, tmp_path: Path) -> None:
        for name in ("train/cat/1.png", "test/cat/1.png"):
            draw(tmp_path / name)
        with pytest.raises(InvalidFileError, match=r"training and a test split; pass one.*train"):
            load_tasks(tmp_path)

    def test_a_link_to_a_parent_ends_no_walk(self, tmp_path: Path) -> None:
        draw(tmp_path / "pets" / "cat" / "1.png")
        (tmp_path / "pets" / "cat" / "loop").symlink_to(tmp_path / "pets")
        draw(tmp_path / "elsewhere" / "1.png")
        (tmp_path / "pets" / "dog").symlink_to(tmp_path / "elsewhere")
        assert content(load_tasks(tmp_path / "pets")) == {"pets": ["cat", "dog"]}

    @pytest.mark.parametrize("found", [True, False], ids=["images", "no images"])
    def test_links_between_folders_are_walked_once(self, tmp_path: Path, found: bool) -> None:
        """Forty links in a row form 2**40 paths."""
        for name, other in (("cat", "dog"), ("dog", "cat")):
            (tmp_path / "pets" / name).mkdir(parents=True)
            if found:
                draw(tmp_path / "pets" / name / "1.png")
            for link in ("x", "y"):
                (tmp_path / "pets" / name / link).symlink_to(f"../{other}")
        if found:
            tasks = load_tasks(tmp_path / "pets")
            assert content(tasks) == {"pets": ["cat", "cat", "dog", "dog"]}
        else:
            with pytest.raises(InvalidFileError, match="nested folders"):
                load_tasks(tmp_path / "pets")

    def test_folders_nested_beyond_the_recursion_limit(self, tmp_path: Path) -> None:
        deep = draw(tmp_path / "pets" / "cat" / "1.png").parent
        for _ in range(sys.getrecursionlimit()):
            deep /= "d"
            deep.mkdir()
        draw(deep / "2.png")
        try:
            assert content(load_tasks(tmp_path / "pets")) == {"pets": ["cat", "cat"]}
            with pytest.raises(InvalidFileError, match="nested too deeply"):
                load_tasks(tmp_path / "pets" / "cat" / "d")
        finally:  # pytest cannot
            subprocess.run(["rm", "-r", tmp_path / "pets"], check=True)

    def test_without_class_folders(self, tmp_path: Path) -> None:
        draw(tmp_path / "1.png")
        with pytest.raises(InvalidFileError, match="no class folders"):
            load_tasks(tmp_path)
        with pytest.raises(InvalidFileError, match="is not a folder"):
            load_tasks(tmp_path / "none")

    def test_unreadable_files_are_left_out_and_listed(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
            draw(tmp_path / name)
        (tmp_path / "cat" / "bad.png").write_bytes(b"nothing")
        (tmp_path / "dog" / "bad.png").write_bytes(b"nothing")
        with caplog.at_level(logging.WARNING, "remembering"):
            (task,) = load_tasks(tmp_path)
        assert task.labels == ("cat", "cat", "dog")
        assert isinstance(task.images, ImageFiles)
        assert len(task.images[torch.arange(3)]) == 3
        assert [record.message.split(" is not")[0] for record in caplog.records] == [
            f"skipped: {tmp_path / label / 'bad.png'}" for label in ("cat", "dog")
        ]
        with pytest.raises(InvalidFileError, match=r"cat/bad\.png.*and 1 more"):
            load_tasks(tmp_path, strict=True)


class TestImages:
    def test_files_folders_and_tables_in_order(self, tmp_path: Path) -> None:
        for name in ("b/2.png", "b/c/3.png", "1.png", "4.png"):
            draw(tmp_path / name)
        (tmp_path / "list.csv").write_text("file\n4.png\n")
        paths = [tmp_path / "1.png", tmp_path / "b", tmp_path / "list.csv"]
        found = load_images(paths)
        assert [Path(name).stem for name in found.names] == ["1", "2", "3", "4"]
        folders = [Path(group).relative_to(tmp_path).as_posix() for group in found.groups]
        assert folders == [".", "b", "b/c", "."]
        assert len(found.images) == 4
        assert found.unreadable == {}

    def test_unreadable(self, tmp_path: Path) -> None:
        good, bad = draw(tmp_path / "1.png"), tmp_path / "2.png"
        bad.write_bytes(b"nothing")
        found = load_images([tmp_path])
        assert (found.names, list(found.unreadable)) == ([str(good)], [str(bad)])
        assert len(found.images) == 1
        with pytest.raises(InvalidFileError, match=r"2\.png is not an image"):
            load_images([tmp_path], strict=True)
        with pytest.raises(InvalidFileError, match=r"2\.png is not an image"):
            load_images([bad])


def test_streams(tmp_path: Path) -> None:
    for name in ("b/x/1", "b/x/2", "b/y/1", "a/z/1", "a/z/2", "a/w/1"):
        draw(tmp_path / f"{name}.png")
    assert load_stream(tmp_path).labels == ("w", "z", "z", "x", "y", "x")
    (tmp_path / "list.csv").write_text("path,label,task\nb/x/1.png,x,b\na/z/1.png,z,a\n")
    assert load_stream(tmp_path / "list.csv").labels == ("x", "z")


class TestTables:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for i, name in enumerate(("a/1.png", "a/2.png", "3.png", "4.png")):
            draw(tmp_path / "data" / name, i)
        draw(tmp_path / "outside.png")
        return tmp_path / "data"

    @pytest.mark.parametrize("delimiter", [",", ";", "\t"])
    def test_csv(self, folder: Path, delimiter: str) -> None:
        text = io.StringIO()
        rows = [("Path", "label", "task"), ("a/1.png", "x, y", "u"), ("3.png", "z", "v")]
        csv.writer(text, delimiter=delimiter).writerows([*rows, ("a/2.png", "z", "u")])
        (folder / "list.csv").write_text(text.getvalue(), encoding="utf-8-sig")
        tasks = load_tasks(folder / "list.csv")
        assert content(tasks) == {"u": ["x, y", "z"], "v": ["z"]}
        assert [int(image[0, 0, 0]) for image in tasks[0].images[torch.arange(2)]] == [0, 1]

    @pytest.mark.parametrize("labels", [["x", "y"], [5, 6]])
    def test_parquet_of_paths(self, folder: Path, labels: list[str | int]) -> None:
        table = pa.table({"file_name": ["a/1.png", "3.png"], "class": labels})
        pq.write_table(table, folder / "list.parquet")
        (task,) = load_tasks(folder / "list.parquet")
        assert (task.name, list(task.labels)) == ("list", labels)
        assert len(task.images[torch.arange(2)]) == 2

    def test_parquet_of_images(self, folder: Path) -> None:
        image = {"bytes": (folder / "3.png").read_bytes(), "path": None}
        pq.write_table(
            pa.table({"image": [image] * 2, "label": ["x", "y"]}), folder / "list.parquet"
        )
        (task,) = load_tasks(folder / "list.parquet")
        assert [int(image[0, 0, 0]) for image in task.images[torch.arange(2)]] == [2, 2]

    def test_paths_in_an_image_column_are_not_followed(self, folder: Path) -> None:
        image = {"bytes": None, "path": str(folder / "3.png")}
        pq.write_table(pa.table({"image": [image], "label": ["x"]}), folder / "list.parquet")
        with pytest.raises(InvalidFileError, match="paths in data files are not followed"):
            load_tasks(folder / "list.parquet", strict=True)

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    @pytest.mark.parametrize("name", ["../outside.png", "link.png", "absolute", ""])
    def test_a_table_names_no_files_outside_of_its_folder(
        self, folder: Path, name: str, kind: str
    ) -> None:
        (folder / "link.png").symlink_to(folder.parent / "outside.png")
        name = str(folder.parent / "outside.png") if name == "absolute" else name
        if kind == "csv":
            (folder / "list.csv").write_text(f"path,label\n3.png,x\n{name},y\n")
        else:
            table = pa.table({"path": ["3.png", name], "label": ["x", "y"]})
            pq.write_table(table, folder / "list.parquet")
        with pytest.raises(InvalidFileError, match=r"row 2 of .* is not below the folder"):
            load_tasks(folder / f"list.{kind}")

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_a_link_to_itself_is_no_image(self, folder: Path, kind: str) -> None:
        (folder / "link.png").symlink_to("link.png")
        (folder / "list.csv").write_text("path,label\nlink.png,x\n")
        pq.write_table(pa.table({"path": ["link.png"], "label": ["x"]}), folder / "list.parquet")
        with pytest.raises(InvalidFileError, match=r"link\.png cannot be read"):
            load_tasks(folder / f"list.{kind}")

    @pytest.mark.parametrize("column", ["path", "label", "task"])
    def test_text_that_is_not_utf8_is_refused(self, folder: Path, column: str) -> None:
        text = pa.array([b"\xff"], pa.binary()).view(pa.string())
        columns = {"path": ["3.png"], "label": ["x"], "task": ["t"], column: text}
        pq.write_table(pa.table(columns), folder / "list.parquet")
        with pytest.raises(InvalidFileError, match=r"list.parquet is not a Parquet file.*UTF"):
            load_tasks(folder / "list.parquet")

    def test_times_that_python_lacks_are_no_labels(self, folder: Path) -> None:
        columns = {"path": ["3.png"], "label": pa.array([2**62], pa.timestamp("us"))}
        pq.write_table(pa.table(columns), folder / "list.parquet")
        with pytest.raises(InvalidFileError, match="column 'label' has no labels"):
            load_tasks(folder / "list.parquet")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("path,label\n", "no rows"),
            ("", "no rows"),
            ("name,label\n1.png,x\n", "no column of images among name, label"),
            ("path,colour\n3.png,x\n", "no column of labels"),
            ("path,label\n3.png\n", "line 2 of .* cells"),
            ("path,label\n3.png,x,y\n", "line 2 of .* cells"),
            ("path,label\nnone.png,x\n", "does not exist"),
        ],
    )
    def test_damaged_csv(self, folder: Path, text: str, message: str) -> None:
        (folder / "list.csv").write_text(text)
        with pytest.raises(InvalidFileError, match=message):
            load_tasks(folder / "list.csv")

    def test_other_content(self, folder: Path) -> None:
        for name in ("list.csv", "list.parquet"):
            (folder / name).write_bytes(b"\xff\xfe\x00")
            with pytest.raises(InvalidFileError, match="is not a "):
                load_tasks(folder / name)
        pq.write_table(pa.table({"x": [1]}), folder / "x.parquet")
        with pytest.raises(InvalidFileError, match="no image column found among x"):
            load_tasks(folder / "x.parquet")

"""Run the notebooks of docs/ and store their outputs: `make notebooks`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOKS = sorted(Path(__file__).resolve().parents[1].glob("docs/notebooks/*.ipynb"))
TIMEOUT = 900
"""Seconds that a cell may take, on a busy machine."""


def run(path: Path) -> Any:
    """Return a notebook with the outputs of its cells, run in a new process and folder.

    Warnings of libraries and HTML are left out: they depend on what else is installed.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        sockets = str(Path(folder) / "kernel")
        NotebookClient(
            notebook,
            km=AsyncKernelManager(kernel_name="python3", transport="ipc", ip=sockets),
            timeout=TIMEOUT,
            startup_timeout=TIMEOUT,
            coalesce_streams=True,
            record_timing=False,
            resources={"metadata": {"path": folder}},
        ).execute(cleanup_kc=True)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                output.get("data", {}).pop("text/html", None)
    return notebook


def main() -> None:
    """Run all notebooks."""
    for path in NOTEBOOKS:
        nbformat.write(run(path), path)
        print(path)


if __name__ == "__main__":
    main()

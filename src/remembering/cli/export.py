"""`remember export`: write a model as an ONNX file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from remembering.cli.parsing import Flag, parse
from remembering.cli.text import counted
from remembering.errors import RememberingError
from remembering.runtime.text import printable


@dataclass(frozen=True)
class Export:
    """Write the complete answer path of a model as an ONNX file.

    The file is verified with onnxruntime before it is written. Labels and preprocessing are part of
    its metadata.

    Attributes:
        model: Folder of the model.
        onnx: The file to write.
        images: Images to verify the file with: a file or a folder. By default replay images, where
            the model has some, and generated patterns.
        overwrite: Replace an existing file.
        backbone: Where the backbone of the model is now, if it was moved.
    """

    model: tyro.conf.Positional[Path]
    onnx: Path
    images: Path | None = None
    overwrite: Flag = False
    backbone: str | None = None


def main(arguments: list[str]) -> int:
    """Run `remember export` and return its exit code."""
    options = parse(Export, arguments, "export")
    if options.onnx.is_file() and not options.overwrite:
        raise RememberingError(f"{options.onnx} exists; give another file, or --overwrite")

    from remembering.data.found_images import load_images
    from remembering.model import RememberingTransformer

    images = load_images([options.images]).images if options.images else None
    model = RememberingTransformer.load(options.model, backbone=options.backbone)
    exported = model.export_onnx(options.onnx, images=images, overwrite=options.overwrite)
    found = exported.verification
    print(
        printable(
            f"written to {options.onnx}: {counted(len(model.tasks), 'task')}, "
            f"{len(model.classes):,} classes, {exported.bytes / 1e6:,.1f} MB"
        )
    )
    print(
        f"verified on {counted(found.images, 'image')}, answered by {found.adapters} of "
        f"{counted(len(model.state.adapters), 'adapter')}: probabilities differ by at most "
        f"{found.difference:.1e}, p-values by {found.p_value_difference:.1e}"
    )
    return 0

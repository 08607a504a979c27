"""The command `remember`: one module per subcommand, with its options and its `main` function.

`parsing` turns arguments into options, `text` escapes what is printed, and `terminal` draws tables.
Nothing here computes results: commands call the library and show what it returns. They import
torch, and modules that need it, inside functions, so that `--help` stays fast.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from remembering.cli.text import log_to_stderr, print_error, tolerate_any_text
from remembering.errors import RememberingError

# Each command is the function `main` of the module of the same name.
COMMANDS = {
    "learn": "Learn one task after another from folders of class folders or a table.",
    "predict": "Classify images whose task is unknown.",
    "evaluate": "Measure how good a model is on labelled images.",
    "observe": "Learn from a stream of labelled images without task boundaries.",
    "inspect": "Show what a model has learned: tasks, classes, adapters, footprint.",
    "add": "Add images and classes to a task, without training.",
    "rename": "Rename a task or a class.",
    "forget": "Remove a task or a class from a model.",
    "merge": "Add the tasks of another model on the same backbone.",
    "undo": "Undo the last change of a model.",
    "consolidate": "Retrain shared adapters on the replay images of all their tasks.",
    "export": "Write the complete answer path of a model as an ONNX file.",
    "play": "Teach a model and ask it in the browser, on this machine.",
    "serve": "Serve a model over HTTP, with a browser UI: predict, teach, forget.",
    "demo": "Learn scikit-learn's digits in five tasks and write a report.",
    "run": "Run an experiment by name or from a TOML file.",
    "compare": "Compare methods on one experiment.",
    "report": "Write an HTML page with tables and plots of runs and comparisons.",
}
_SYNONYMS = {
    **dict.fromkeys(("train", "fit", "teach"), "learn"),
    **dict.fromkeys(("classify", "infer"), "predict"),
    **dict.fromkeys(("eval", "test", "score"), "evaluate"),
    **dict.fromkeys(("stream", "watch"), "observe"),
    **dict.fromkeys(("show", "info", "list", "verify", "check"), "inspect"),
    **dict.fromkeys(("remove", "delete", "unlearn"), "forget"),
    **dict.fromkeys(("revert", "redo", "rollback"), "undo"),
    **dict.fromkeys(("refine", "extend"), "add"),
    **dict.fromkeys(("onnx", "convert"), "export"),
    **dict.fromkeys(("experiment", "reproduce"), "run"),
    **dict.fromkeys(("benchmark", "baselines"), "compare"),
    **dict.fromkeys(("plot", "page"), "report"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `remember`.

    Args:
        argv: The arguments. If None, those of the process.

    Returns:
        The exit code: 0 on success, 1 after an error, 130 after Ctrl-C.
    """
    # OpenMP threads spin while they wait by default, which makes small models up to 15 times
    # slower on a busy machine. Must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    tolerate_any_text()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except RememberingError as error:  # first: some of its subclasses are OSErrors, too
        print_error(str(error))
        return 1
    except KeyboardInterrupt:
        print("interrupted; everything saved before is intact", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has gone, for example `head`
        sys.stderr.close()
        return 141
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        print_error(f"{where}{error.strerror or error}")
        return 1


def _run(arguments: list[str]) -> int:
    """Run a command, or print the usage or version, and return the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage(), flush=True)
        return 0
    if arguments[0] == "--version":
        from remembering import __version__

        print(__version__, flush=True)
        return 0
    name, *rest = arguments
    _check_command(name)
    with log_to_stderr():
        code: int = importlib.import_module(f"remembering.cli.{name}").main(rest)
    return code


def _check_command(name: str) -> None:
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        meant = _SYNONYMS.get(name.lower()) or (close[0] if close else None)
        hint = f"did you mean 'remember {meant}'?" if meant else "see remember --help"
        raise RememberingError(f"there is no command '{name}'; {hint}")
    if name != "run" and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise RememberingError(
            f"remember {name} works in one process; use torchrun and accelerate launch only with "
            "remember run"
        )


def _usage() -> str:
    return "\n".join(
        [
            "Teach a pretrained Transformer one task after another, without forgetting.",
            "",
            "usage: remember COMMAND [OPTIONS]",
            "",
            *(f"  {name:12}{help_text}" for name, help_text in COMMANDS.items()),
            "",
            "remember COMMAND --help shows the options of a command.",
        ]
    )

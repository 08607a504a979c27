"""remember demo | run | compare | learn | predict | inspect | forget | report

Only this file's light imports run before `--help` answers; each command imports what it needs.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from remembering.cli.options import Compare, Demo, Forget, Inspect, Learn, Predict, Report, Run
from remembering.config import Settings
from remembering.errors import RememberingError
from remembering.experiments.spec import Experiment, find, names, with_seed

if TYPE_CHECKING:
    from remembering.runtime.distributed import Distributed


def main(argv: Sequence[str] | None = None) -> int:
    """The command `remember`; returns its exit code."""
    # OpenMP's threads spin while they wait, which on a busy machine makes small models up to 15
    # times slower than threads that sleep. Read once, when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if arguments[0] == "--version":
        from remembering import __version__

        print(__version__)
        return 0
    name, *rest = arguments
    try:
        if name not in _COMMANDS:
            raise RememberingError(f"there is no command '{name}'; see remember --help")
        kind, handle = _COMMANDS[name]
        if kind is not Run and int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise RememberingError(
                f"remember {name} works in one process; torchrun and accelerate launch are for "
                "remember run"
            )
        if kind in (Run, Learn, Compare):  # what they take depends on what they are given
            return handle(rest)
        return handle(_parse(kind, rest, f"remember {name}"))
    except RememberingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing that was saved is lost", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        return 141
    except OSError as error:
        print(f"error: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 1


def _parse(kind: Any, arguments: list[str], program: str, default: Any = None) -> Any:
    return tyro.cli(
        kind,
        args=arguments,
        prog=program,
        description=kind.__doc__,
        config=(tyro.conf.FlagCreatePairsOff,),
        **({} if default is None else {"default": default}),
    )


def _usage() -> str:
    lines = [
        "Teach a pretrained Transformer one task after another, without forgetting.",
        "",
        "usage: remember COMMAND [OPTIONS]      remember COMMAND --help says more",
        "",
    ]
    for name, (kind, _) in _COMMANDS.items():
        lines.append(f"  {name:9}{str(kind.__doc__).splitlines()[0]}")
    return "\n".join(lines)


def _demo(command: Demo) -> int:
    from remembering.cli.demo import demo
    from remembering.cli.terminal import TerminalProgress

    if command.out and command.out.exists() and any(command.out.iterdir()):
        raise RememberingError(f"{command.out} is not empty; give another --out")
    demo(command.out or _fresh(Path("runs/demo")), TerminalProgress())
    return 0


def _run(arguments: list[str]) -> int:
    """`run` is parsed once for each variant: the file gives the defaults, options change them."""
    if "--list" in arguments:
        width = max(map(len, names()))
        for name in names():
            print(f"{name:{width}}  {find(name).description}")
        return 0
    name = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    if not name and "-h" not in arguments and "--help" not in arguments:
        raise RememberingError(
            "name an experiment first: remember run NAME [OPTIONS]; remember run --list names all"
        )
    variants: dict[str | None, Experiment] = (
        find(name).variants("--small" in arguments) if name else {None: Experiment()}
    )
    commands = {
        variant: _parse(Run, arguments, "remember run", Run(name=name, experiment=experiment))
        for variant, experiment in variants.items()
    }
    command = next(iter(commands.values()))
    seeds = _seeds(command.seeds) or [command.experiment.learning.seed]

    from remembering.runtime.distributed import launched

    with launched() as distributed:
        return _run_variants(command, commands, seeds, arguments, distributed)


def _run_variants(
    command: Run,
    commands: dict[str | None, Run],
    seeds: list[int],
    arguments: list[str],
    distributed: Distributed,
) -> int:
    from remembering.cli.terminal import TerminalProgress, show
    from remembering.experiments.run import run
    from remembering.report.results import Group
    from remembering.report.tables import units_table
    from remembering.runtime.progress import SILENT

    title = Path(command.name).stem
    base = Path("runs") / (f"{title}-small" if command.small else title)
    choose = _latest if command.resume else _fresh
    out = command.out or distributed.on_main(lambda: choose(base))
    single = len(commands) == 1 and len(seeds) == 1
    for variant, parsed in commands.items():
        results, folders = [], []
        for seed in seeds:
            folder = out if single else out / _slug(variant) / f"seed-{seed}"
            try:
                done = run(
                    title,
                    with_seed(parsed.experiment, seed),
                    folder,
                    variant,
                    command.small,
                    command.resume or not single,
                    command.save_steps,
                    TerminalProgress() if distributed.main else SILENT,
                    command.tracker,
                )
            except KeyboardInterrupt:
                again = "" if "--resume" in arguments else " --resume"
                where = "" if command.out else f" --out {shlex.quote(str(out))}"
                line = f"remember run {shlex.join(arguments)}{where}{again}"
                if distributed.main:
                    print(f"stopped; go on with: {line}", file=sys.stderr)
                raise SystemExit(130) from None  # past what waits for the other processes
            results.append(done)
            folders.append(folder)
        if distributed.main:
            show(units_table(Group.of(results, folders)))
    if distributed.main:
        print(f"written to {out}; draw it with: remember report {out}")
    return 0


def _seeds(text: str) -> list[int]:
    if not text:
        return []
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError as error:
        raise RememberingError(
            f"--seeds {text} is no list of whole numbers, such as 0,1,2"
        ) from error
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise RememberingError(f"--seeds {text} has a seed twice or below 0")
    return seeds


def _compare(arguments: list[str]) -> int:
    if "--list" in arguments:
        from remembering.experiments.methods import titles

        width = max(map(len, titles()))
        for method, title in titles().items():
            print(f"{method:{width}}  {title}")
        return 0
    command: Compare = _parse(Compare, arguments, "remember compare")
    seeds = _seeds(command.seeds)
    if not seeds:
        raise RememberingError("--seeds names no seed; give at least one, such as 0")
    variants = find(command.name).variants(command.small)
    if len(variants) > 1:
        raise RememberingError(f"{command.name} has variants; methods are compared on one setting")
    experiment = next(iter(variants.values()))
    if command.data:
        experiment = replace(experiment, stream=replace(experiment.stream, data=command.data))
    experiment = replace(
        experiment,
        backbone=command.backbone or experiment.backbone,
        image_size=experiment.image_size if command.image_size is None else command.image_size,
    )
    title = Path(command.name).stem
    base = f"{title}-small" if command.small else title
    out = command.out or Path("runs/compare") / base

    from remembering.cli.terminal import TerminalProgress, show
    from remembering.experiments.compare import compare
    from remembering.experiments.methods import names as methods
    from remembering.experiments.methods import options
    from remembering.report.comparison import asked, comparison_table, load_comparison

    chosen = methods(command.methods)
    changed = options(command.options, chosen)
    words = asked(command.name, command.small, command.backbone, command.image_size, command.data)
    progress = TerminalProgress()
    try:
        compare(title, experiment, out, chosen, seeds, command.small, progress, changed, words)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    show(comparison_table(load_comparison(out)))
    print(f"written to {out}; draw it with: remember report {out}")
    return 0


def _learn(arguments: list[str]) -> int:
    """Parsed twice for a model that is there: what it was made with are then the defaults."""
    command: Learn = _parse(Learn, arguments, "remember learn")

    from remembering.cli.terminal import TerminalProgress
    from remembering.data.task import Task
    from remembering.learning.checkpoint import NAME, Checkpoint
    from remembering.model import RememberingTransformer
    from remembering.runtime.lock import only_writer
    from remembering.storage.manifest import is_model, read_manifest
    from remembering.storage.store import in_use

    task = Task.from_folder(command.folder, command.name)
    with only_writer(command.model_dir):
        if is_model(command.model_dir):
            made = read_manifest(command.model_dir)
            default = replace(
                command, settings=made.settings, image_size=made.backbone.image_size, backbone=None
            )
            command = _parse(Learn, arguments, "remember learn", default)
            _check_unchanged(command, made.settings, made.backbone.image_size)
            model = RememberingTransformer.load(command.model_dir, command.backbone)
            model.settings = command.settings
        else:
            if in_use(command.model_dir):
                raise RememberingError(
                    f"{command.model_dir} is not empty and holds no model; give a new folder"
                )
            model = RememberingTransformer.from_backbone(
                command.backbone or "bundled", command.settings, command.image_size
            )
        path = command.model_dir / NAME
        checkpoint = Checkpoint(path, command.save_steps, command.resume)
        try:
            record = model.learn(task, TerminalProgress(), checkpoint)
        except KeyboardInterrupt:
            again = "" if command.resume else " --resume"
            line = f"remember learn {shlex.join(arguments)}{again}"
            print(f"stopped; the model is as it was; go on with: {line}", file=sys.stderr)
            return 130
        model.save(command.model_dir)
        checkpoint.remove()
    print(
        f"learned '{record.name}': {len(record.classes)} classes, {record.images} images, "
        f"adapter {record.adapter}; {len(model.tasks)} tasks and {len(model.adapters)} adapters "
        f"in {command.model_dir}"
    )
    return 0


def _check_unchanged(command: Learn, made: Settings, image_size: int) -> None:
    """A model keeps what it was made with, but for how long and how fast a task is learned."""
    free = ("epochs", "batch_size", "lr", "weight_decay")
    old, new = {"image_size": image_size}, {"image_size": command.image_size}
    for settings, flat in ((made, old), (command.settings, new)):
        flat |= {k: v for k, v in vars(settings).items() if k not in ("router", *free)}
        flat |= {f"router.{k}": v for k, v in vars(settings.router).items()}
    for name, value in old.items():
        if new[name] != value:
            raise RememberingError(
                f"the model was made with {name} = {value}, which cannot change; "
                f"leave out --{name.replace('_', '-')}, or start a new model"
            )


def _predict(command: Predict) -> int:
    if command.json and command.csv:
        raise RememberingError("--json and --csv exclude each other; give one of them")
    from remembering.cli.predict import predict_files, print_answers

    return print_answers(
        predict_files(
            command.model_dir,
            command.images,
            command.together,
            command.backbone,
            command.unknown,
        ),
        "json" if command.json else "csv" if command.csv else "table",
    )


def _inspect(command: Inspect) -> int:
    if command.verify:
        from remembering.storage.manifest import read_manifest
        from remembering.storage.store import verify

        problems = verify(command.model_dir)
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        if not problems:
            print(f"{len(read_manifest(command.model_dir).files)} files are as they were saved")
        return 1 if problems else 0
    from remembering.cli.inspect import inspect

    inspect(command.model_dir, command.json, command.backbone)
    return 0


def _forget(command: Forget) -> int:
    from remembering.model import RememberingTransformer
    from remembering.runtime.lock import only_writer

    with only_writer(command.model_dir):
        model = RememberingTransformer.load(command.model_dir, command.backbone)
        gone = model.forget(command.task)
        model.save(command.model_dir)
    adapter = f"adapter {gone.task.adapter}"
    kept = f"; {adapter} stays, because {', '.join(gone.shared_with)} needs it"
    print(
        f"forgot '{gone.task.name}': its generative model, {gone.replay_images} replay images"
        + (kept if gone.shared_with else f" and {adapter}")
    )
    return 0


def _report(command: Report) -> int:
    if not command.runs:
        raise RememberingError("name folders of runs or comparisons, such as remember report runs")
    if command.markdown:
        from remembering.report.markdown import results_markdown
        from remembering.runtime.files import write_atomic

        intro = command.intro.read_text() if command.intro else ""
        words = ["remember report", *map(str, command.runs), "--markdown", str(command.markdown)]
        words += ["--intro", str(command.intro)] if command.intro else []
        text = results_markdown(command.runs, intro=intro, command=" ".join(words))
        write_atomic(command.markdown, text.encode())
        print(f"written to {command.markdown}")
        return 0
    from remembering.report.page import write_report

    print(f"written to {write_report(command.runs, command.out)}")
    return 0


def _fresh(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3 ... that is not there."""
    number, candidate = 2, folder
    while candidate.exists():
        number, candidate = number + 1, folder.with_name(f"{folder.name}-{number}")
    return candidate


def _latest(folder: Path) -> Path:
    """The last one that `_fresh` gave."""
    number, candidate, latest = 2, folder, folder
    while candidate.exists():
        latest = candidate
        number, candidate = number + 1, folder.with_name(f"{folder.name}-{number}")
    return latest


def _slug(variant: str | None) -> str:
    return "".join(c if c.isalnum() or c in "=-" else "-" for c in variant or "")


_COMMANDS: dict[str, tuple[Any, Callable[[Any], int]]] = {
    "demo": (Demo, _demo),
    "run": (Run, _run),
    "compare": (Compare, _compare),
    "learn": (Learn, _learn),
    "predict": (Predict, _predict),
    "inspect": (Inspect, _inspect),
    "forget": (Forget, _forget),
    "report": (Report, _report),
}

if __name__ == "__main__":
    sys.exit(main())

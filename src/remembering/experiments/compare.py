"""The experiment loop over methods and seeds: an experiment with its baselines, or a comparison.

OUT/                     folder of the model's run (see `folder`), for `run_experiment`
OUT/baselines/METHOD/    folders of its baselines' runs
OUT/METHOD/seed-N/       folders of the runs, for `compare`
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from remembering import schema
from remembering.backbones.backbone import Backbone
from remembering.baselines.features import FeatureCache
from remembering.errors import RememberingError
from remembering.evaluation.metrics import mean
from remembering.experiments.folder import CONFIG, LOGS, RunFolder, read_config
from remembering.experiments.methods import METHODS, Context, Method, find_method, parse_options
from remembering.experiments.result import RunResult
from remembering.experiments.run import run
from remembering.experiments.spec import MODEL, Experiment, RunConfig, with_seed
from remembering.experiments.stream import make_stream
from remembering.learner import Learner
from remembering.runtime.distributed import current
from remembering.runtime.lock import only_writer
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.text import duration
from remembering.runtime.tracking import check_tracker, tracked
from remembering.storage.layout import in_use


def run_experiment(
    name: str,
    experiment: Experiment,
    out: Path,
    *,
    variant: str | None = None,
    small: bool = False,
    command: Sequence[str] = (),
    resume: bool = False,
    save_steps: int = 0,
    progress: Progress = SILENT,
    tracker: str | None = None,
) -> list[RunResult]:
    """Run an experiment and its baselines with one seed, in a folder of its own.

    Args:
        name: Name of the experiment.
        experiment: Its settings.
        out: The folder. The model is kept in `out / "model"`.
        variant: Name of the variant.
        small: Whether these are the experiment's smaller settings.
        command: Words that results record (see `provenance.command_words`).
        resume: Whether to continue a run that was interrupted.
        save_steps: Save a checkpoint every so many steps, besides after each epoch.
        progress: Reports progress.
        tracker: Name of a tracker of accelerate that logs the losses and accuracies of the model.

    Returns:
        The result of the model, then those of the baselines.

    Raises:
        RememberingError: If the folder is in use, or holds a run with other settings.
    """
    if tracker:
        check_tracker(tracker)
    for baseline in experiment.baselines:
        find_method(baseline)  # raises if there is none
    options = parse_options(experiment.options, list(METHODS))
    command = tuple(command) or ("run", name, *(["--small"] if small else []))
    folders = {MODEL: out} | {b: out / "baselines" / b for b in experiment.baselines}
    plans = [
        _Plan.of(
            RunConfig(name, method, experiment, variant, small, options.get(method, {}), command),
            folder,
            keep_state=method == MODEL,
        )
        for method, folder in folders.items()
    ]
    distributed = current()
    with contextlib.ExitStack() as stack:
        distributed.on_main(lambda: stack.enter_context(only_writer(out)))
        distributed.on_main(lambda: _check_run(out, plans, resume))

        def observed(plan: _Plan) -> Progress:
            """Track the model alone: baselines log the same names."""
            if not tracker or not distributed.main or plan.config.method != MODEL:
                return progress
            settings = schema.write(experiment)
            return stack.enter_context(tracked(progress, tracker, out / LOGS, name, settings))

        return _execute(plans, f"running {name}", progress, observed, save_steps)


def compare(
    name: str,
    experiment: Experiment,
    out: Path,
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    small: bool = False,
    options: Mapping[str, Mapping[str, float]] | None = None,
    command: Sequence[str] = (),
    progress: Progress = SILENT,
) -> list[RunResult]:
    """Run several methods on one experiment with several seeds.

    The same call continues after an interruption; methods and seeds may be added.

    Args:
        name: Name of the experiment.
        experiment: Its settings.
        out: The folder.
        methods: Names of methods (see `methods.METHODS`).
        seeds: The seeds.
        small: Whether these are the experiment's smaller settings.
        options: Options by method; they override those of the experiment.
        command: Words that results record (see `provenance.command_words`).
        progress: Reports progress.

    Raises:
        RememberingError: If the folder is in use, or holds a comparison with other settings.
    """
    defaults, overrides = parse_options(experiment.options, list(METHODS)), options or {}
    command = tuple(command) or ("compare", name, *(["--small"] if small else []))
    plans = []
    for seed in dict.fromkeys(seeds):
        for method in methods:
            chosen = {**defaults.get(method, {}), **overrides.get(method, {})}
            settings = with_seed(experiment, seed)
            config = RunConfig(name, method, settings, None, small, chosen, command)
            plans.append(_Plan.of(config, out / method / f"seed-{seed}", keep_state=False))
    with only_writer(out):
        _check_comparison(out, plans)
        return _execute(plans, f"comparing on {name}", progress, lambda _: progress)


@dataclass(frozen=True)
class _Plan:
    """A run that is to be done."""

    config: RunConfig
    method: Method
    folder: RunFolder
    keep_state: bool

    @classmethod
    def of(cls, config: RunConfig, folder: Path, *, keep_state: bool) -> _Plan:
        method = find_method(config.method)
        config = replace(
            config,
            settings=replace(config.settings, options=()),  # those of the method are in `options`
            options=method.changed(config.options),
        )
        return cls(config, method, RunFolder(folder, method.state), keep_state)

    def new(self, context: Context) -> Learner:
        return self.method.new(context, self.method.options(self.config.options, context.stream))

    def resumed(self, context: Context, progress: Progress) -> Learner:
        """Return the learner after the tasks that are done; start again if that is damaged."""
        distributed, learner = current(), None
        try:
            scored = len(self.folder.read_progress().scores)
            if scored or self.folder.state_path.exists():
                learner = self.method.load(self.folder.state_path, context)
                if not 0 <= learner.learned - scored <= 1:
                    raise RememberingError(
                        f"{self.folder.state_path} has learned {learner.learned} tasks, but the "
                        f"scores are those of {scored}"
                    )
        except RememberingError as error:
            learner = None
            progress.say(f"{self.folder.path} starts again, because {error}")
        if distributed.agree(learner is None, "state of the run"):
            distributed.on_main(self.folder.restart)
        return self.new(context) if learner is None else learner

    def run(self, context: Context, save_steps: int, progress: Progress) -> RunResult:
        current().on_main(lambda: self.folder.open(self.config))
        return run(
            self.resumed(context, progress),
            context.stream,
            self.method.evaluator(context),
            config=self.config,
            method=self.method.info(self.method.options(self.config.options, context.stream)),
            backbone=context.backbone,
            folder=self.folder,
            every_task=self.method.every_task,
            keep_state=self.keep_state,
            save_steps=save_steps,
            cache=context.cache,
            progress=progress,
        )


def _execute(
    plans: Sequence[_Plan],
    description: str,
    progress: Progress,
    observed: Callable[[_Plan], Progress],
    save_steps: int = 0,
) -> list[RunResult]:
    """Return the results of all plans, after running those that are not done yet."""
    distributed = current()

    def finished() -> list[RunResult | None]:
        return [plan.folder.read_result() if plan.folder.done else None for plan in plans]

    results = distributed.on_main(finished)
    seeds = [plan.config.seed for plan, result in zip(plans, results, strict=True) if not result]
    if seeds:
        settings = plans[0].config.settings
        with distributed.local_main_first():  # it may have to download it
            backbone = Backbone.load(settings.backbone, settings.image_size)
    with progress.track(description, len(plans)) as step:
        step(len(plans) - len(seeds), _time_left(plans, results))
        for seed in dict.fromkeys(seeds):
            left = [
                i for i, plan in enumerate(plans) if plan.config.seed == seed and not results[i]
            ]
            with distributed.local_main_first():
                experiment = plans[left[0]].config.settings
                context = Context(experiment, make_stream(experiment), backbone, FeatureCache())
            for i in left:  # before any of them starts: raises if one cannot run
                plans[i].new(context)
                plans[i].method.evaluator(context)
            for i in left:
                result = plans[i].run(context, save_steps, observed(plans[i]))
                results[i] = result
                step(1, _time_left(plans, results))
                progress.say(_line(result, plans, results))
    return [result for result in results if result]


def _check_run(out: Path, plans: Sequence[_Plan], resume: bool) -> None:
    """Raise unless the folder is empty, or holds the run that is to be resumed."""
    if not (out / CONFIG).is_file():
        if in_use(out):
            raise RememberingError(f"{out} is not empty and holds no run; choose another --out")
        return
    if not resume:
        raise RememberingError(
            f"{out} already holds a run; add --resume to continue it, or choose another --out"
        )
    for plan in plans:
        before = plan.folder.read_config()
        if before and plan.folder.started:
            differing = _differences(before, plan.config)
            if before.seed != plan.config.seed:
                differing.append("learning.seed")
            if differing:
                raise RememberingError(
                    f"{out} holds a run with other settings ({', '.join(differing)}: see "
                    f"{CONFIG}); choose another --out"
                )


def _check_comparison(out: Path, plans: Sequence[_Plan]) -> None:
    """Raise unless the folder is empty, or holds runs with the same settings."""
    folders = sorted(path.parent for path in out.glob(f"*/seed-*/{CONFIG}"))
    if not folders and in_use(out):
        raise RememberingError(f"{out} is not empty and holds no comparison; choose another --out")
    planned = {plan.config.method: plan.config for plan in plans}
    for folder in folders:
        config = read_config(folder)
        if not RunFolder(folder, find_method(config.method).state).started:
            continue  # it failed before the first task, perhaps because of these settings
        other = planned.get(config.method, plans[0].config)
        differing = _differences(
            replace(config, method="", options={}), replace(other, method="", options={})
        )
        if differing:
            raise RememberingError(
                f"{out} holds a comparison with other settings ({', '.join(differing)}: see "
                f"{folder.relative_to(out) / CONFIG}); choose another --out"
            )
        if config.method in planned and config.options != other.options:
            raise RememberingError(
                f"{out} holds '{config.method}' with other options ({_shown(config.options)}, not "
                f"{_shown(other.options)}); choose another --out"
            )


def _differences(one: RunConfig, other: RunConfig) -> list[str]:
    found = schema.differences(one.comparable(), other.comparable())
    return [name.removeprefix("settings.") for name in found]


def _shown(options: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in options.items()) or "its defaults"


def _time_left(plans: Sequence[_Plan], results: Sequence[RunResult | None]) -> str:
    """Estimate the remaining time from other seeds of a method, or from the other methods."""
    spent: dict[str, list[float]] = {}
    for result in results:
        if result:
            spent.setdefault(result.config.method, []).append(result.seconds)
    known = {method: mean(seconds) for method, seconds in spent.items()}
    left = [plan.config.method for plan, r in zip(plans, results, strict=True) if not r]
    if not known or not left:
        return ""
    average = mean(list(known.values()))
    seconds = sum(known.get(method, average) for method in left)
    return f"about {duration(seconds)} left"


def _line(result: RunResult, plans: Sequence[_Plan], results: Sequence[RunResult | None]) -> str:
    scores = ", ".join(f"{100 * unit.accuracy:.1f} % ({u})" for u, unit in result.units.items())
    done = f"{sum(found is not None for found in results)} of {len(plans)}"
    state = ", ".join(filter(None, [done, _time_left(plans, results)]))
    return (
        f"{result.config.method}, seed {result.seed}: {scores} in {result.seconds:.0f} s; {state}"
    )

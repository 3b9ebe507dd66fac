"""TensorBoard and Weights & Biases: the config, the curves of fits and the final numbers, for who looks at them there.

On request only: neither is imported, and nothing leaves the machine, unless `track` names it. Everything is also in the
files that jaxalign writes anyway.
"""

import importlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxalign.errors import InputError

Tracker = Literal["tensorboard", "wandb"]
_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


class Point(NamedTuple):
    """A number. `step` is its place on a curve; None for a number of its own."""

    name: str
    step: int | None
    value: float


def check(trackers: Sequence[Tracker]) -> None:
    """Refuses what will not work when the work is done; asks for the login of wandb where that is needed.

    Raises:
      InputError: a package is missing, or wandb is neither logged in nor offline.
    """
    for tracker in trackers:
        if tracker not in _PACKAGES:
            raise InputError(f"track: there is no '{tracker}'; use {' or '.join(_PACKAGES)}")
        module = _package(tracker)
        if tracker == "wandb" and os.environ.get("WANDB_MODE") not in ("offline", "disabled", "dryrun"):
            try:
                module.login()
            except module.Error as error:
                raise InputError(
                    f"track: wandb is not logged in ({error}). Run `wandb login`, or set WANDB_MODE=offline to keep "
                    "the numbers here."
                ) from error


def write(
    trackers: Sequence[Tracker], folder: Path, *, name: str, config: Mapping[str, Any], points: Iterable[Point]
) -> None:
    """Writes to `folder/tensorboard`, and to wandb's project `jaxalign` by way of `folder/wandb`.

    Args:
      trackers: where to; nothing happens where there are none.
      folder: of the results.
      name: of the run.
      config: what it was asked for.
      points: of each name either one without a step, or a curve.

    Raises:
      InputError: a package is missing, or wandb fails.
    """
    if not trackers:
        return
    plain = json.loads(json.dumps(config, default=str))
    # The letters that both take.
    kept = [point._replace(name=re.sub(r"[^-/\w.]", "_", point.name)) for point in points]
    for tracker in trackers:
        writer = {"tensorboard": _tensorboard, "wandb": _wandb}[tracker]
        writer(_package(tracker), folder, name, plain, kept)


def _package(tracker: Tracker) -> Any:
    if tracker == "wandb":
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else it reports its own errors to its makers
    try:
        return importlib.import_module(_PACKAGES[tracker])
    except ImportError as error:
        raise InputError(
            f"track: {tracker} needs the package {_PACKAGES[tracker]} ({error}). Install the extra: pip install "
            f"'jaxalign[{tracker}]'"
        ) from error


def _tensorboard(module: Any, folder: Path, name: str, config: Mapping[str, Any], points: Sequence[Point]) -> None:
    place = folder / "tensorboard"
    for old in place.glob("events.out.tfevents.*"):
        old.unlink()  # of the same results, written before: curves would be drawn twice
    with module.SummaryWriter(str(place)) as writer:
        writer.add_text(name, f"```json\n{json.dumps(config, indent=2, ensure_ascii=False)}\n```")
        for point in points:
            writer.add_scalar(point.name, point.value, point.step or 0)


def _wandb(module: Any, folder: Path, name: str, config: Mapping[str, Any], points: Sequence[Point]) -> None:
    steps: dict[int, dict[str, float]] = {}
    for point in points:
        if point.step is not None:
            steps.setdefault(point.step, {})[point.name] = point.value
    # The numbers and nothing else: no code, console, machine or repository.
    settings = module.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        silent=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run = module.init(project="jaxalign", name=name, dir=str(folder), config=dict(config), settings=settings)
        for step in sorted(steps):  # wandb takes steps in their order only
            run.log(steps[step], step=step)
        run.summary.update({point.name: point.value for point in points if point.step is None})
        run.finish()
    except module.Error as error:
        raise InputError(f"track: wandb failed ({error}). All results are in {folder}.") from error


def fit_points(report: Mapping[str, Any]) -> Iterator[Point]:
    """The curves and accuracies of a fit, from its report as JSON."""
    place = f"fit/{report['method']}"
    for number, seed in enumerate(report["seeds"]):
        part = f"{place}/seed{seed}" if len(report["seeds"]) > 1 else place
        train, validation = report["train_loss"][number], report["validation_loss"][number]
        yield from _curve(f"{part}/train_loss", enumerate(train))
        every = report["eval_every"]
        yield from _curve(
            f"{part}/validation_loss", ((min(n * every, len(train)), v) for n, v in enumerate(validation))
        )
    yield from _evaluations(place, report)


def tune_points(report: Mapping[str, Any]) -> Iterator[Point]:
    """The same of a model that was tuned."""
    place = f"tune/{report['method']}"
    for name in ("train_loss", "gradient_norm"):
        yield from _curve(f"{place}/{name}", enumerate(report[name]))
    validation = ((int(step), loss) for step, loss in report["validation_loss"].items())
    yield from _curve(f"{place}/validation_loss", validation)
    yield from _evaluations(place, report)


def run_points(metrics: Iterable[Mapping[str, Any]], fits: Iterable[Mapping[str, Any]]) -> Iterator[Point]:
    """The final numbers of a run (`metrics.jsonl`, where validation chose), n-shot curves, and the curves of `fits`."""
    for row in metrics:
        if row["chosen"] and row["value"] is not None:
            setting = [row["form"], row["length"], f"k{row['top_k']}" if row["top_k"] is not None else None]
            setting += [row["average"] if row["average"] != "macro" else None]
            setting += ["shots" if row["shots"] is not None else None]
            name = "/".join([row["measure"], row["group"], row["method"], *(part for part in setting if part)])
            yield Point(name, row["shots"], row["value"])
    for report in fits:
        yield from fit_points(report)


def _curve(name: str, values: Iterable[tuple[int, float | None]]) -> Iterator[Point]:
    """What is null, after early stopping, is left out."""
    return (Point(name, step, value) for step, value in values if value is not None)


def _evaluations(place: str, report: Mapping[str, Any]) -> Iterator[Point]:
    for part in ("train", "validation"):
        for name, value in (report.get(part) or {}).items():
            if value is not None:
                yield Point(f"{place}/{part}/{name}", None, value)

"""`jaxalign run EXPERIMENT.py`: an experiment from its config file, with any field set by a flag."""

import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxalign.cli import flags
from jaxalign.cli.runtime import prepare_jax, progress
from jaxalign.errors import InputError

_USAGE = """usage: jaxalign run EXPERIMENT.py [--FIELD VALUE ...]

EXPERIMENT.py defines `experiment`, an Experiment. `jaxalign run EXPERIMENT.py --help` lists its fields.
--dry-run prints the plan, with sizes and expected time, and does nothing.
--processes N runs N processes on this machine as one job. On a TPU slice, under Slurm and under Open MPI they are found
by themselves; anywhere else start each with --coordinator HOST:PORT --processes N --process I."""


def main(arguments: Sequence[str]) -> int:
    """Runs the experiment, prints what came out and returns the exit status."""
    rest = list(arguments)
    if not rest or rest[0] in ("-h", "--help"):
        print(_USAGE)
        return 0 if rest else 2
    default = load_experiment(Path(rest[0]))
    dry = "--dry-run" in rest[1:]
    rest = [rest[0], *(argument for argument in rest[1:] if argument != "--dry-run")]
    job, rest = _job(rest)
    processes = int(job.get("processes", 1))
    if processes > 1 and "coordinator" not in job and not dry:
        from jaxalign.evaluation.launch import launch

        return launch([sys.executable, "-m", "jaxalign", "run", *rest], processes)
    experiment = flags.parse(f"run {rest[0]}", type(default), rest[1:], default=default)
    experiment.check()
    prepare_jax()
    from jaxalign import models
    from jaxalign.evaluation import distributed, pipeline, plan
    from jaxalign.evaluation.sharding import make_mesh, parse_mesh

    if "coordinator" in job:
        distributed.start(job["coordinator"], processes, int(job.get("process", 0)))
    else:
        distributed.start()
    mesh = make_mesh(parse_mesh(experiment.mesh) if experiment.mesh else None)
    # A run compiles many shapes and decodes wide batches: scanned layers compile in a third of the time.
    lm = models.load(experiment.model, dtype=experiment.dtype, layers="scanned", mesh=mesh if mesh.size > 1 else None)
    if dry:
        plan.show(experiment, lm)
        return 0
    from jaxalign.cli.summary import show

    results = pipeline.run(experiment, lm, progress, mesh if mesh.size > 1 else None)
    if distributed.process_index() == 0:
        show(experiment, results)
    distributed.stop()
    return 0


def _job(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """The values of `--processes`, `--process` and `--coordinator`, which are no part of the config; the other
    arguments."""
    found, rest, place = {}, [], 0
    while place < len(arguments):
        name, _, value = arguments[place].removeprefix("--").partition("=")
        if not arguments[place].startswith("--") or name not in ("processes", "process", "coordinator"):
            rest.append(arguments[place])
        else:
            if not value and place + 1 < len(arguments):
                place += 1
                value = arguments[place]
            if name != "coordinator" and not re.fullmatch("[1-9][0-9]{0,5}" + "|0" * (name == "process"), value):
                raise InputError(f"--{name} {value}: a number is needed")
            found[name] = value
        place += 1
    return found, rest


def load_experiment(path: Path) -> Any:
    """The `experiment` that a config file defines.

    Raises:
      InputError: there is no such file, it fails, or it does not define one.
    """
    from jaxalign.evaluation.experiment import Experiment

    if not os.path.isfile(path):
        raise InputError(f"{path}: there is no such experiment file")
    spec = importlib.util.spec_from_file_location("jaxalign_experiment", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: an experiment is a Python file, NAME.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path}: it fails with {type(error).__name__}: {error}") from error
    experiment = getattr(module, "experiment", None)
    if not isinstance(experiment, Experiment):
        raise InputError(f"{path}: it must define `experiment`, a jaxalign.evaluation.experiment.Experiment")
    return experiment

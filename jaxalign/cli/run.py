"""`jaxalign run EXPERIMENT.py`: an experiment from its config file, with any field set by a flag."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxalign.cli import flags
from jaxalign.cli.runtime import progress, use_compilation_cache
from jaxalign.errors import InputError


def main(arguments: Sequence[str]) -> int:
    """Runs the experiment, prints its table and returns the exit status."""
    rest = list(arguments)
    if not rest or rest[0] in ("-h", "--help"):
        print(
            "usage: jaxalign run EXPERIMENT.py [--FIELD VALUE ...]\n\n"
            "EXPERIMENT.py defines `experiment`, an Experiment. `jaxalign run EXPERIMENT.py --help` lists its fields."
        )
        return 0 if rest else 2
    default = load_experiment(Path(rest[0]))
    experiment = flags.parse(f"run {rest[0]}", type(default), rest[1:], default=default)
    use_compilation_cache()
    from jaxalign import models
    from jaxalign.evaluation import experiment as stages

    lm = models.load(experiment.model)
    table = stages.run(experiment, lm, progress)
    show(experiment, table)
    return 0


def load_experiment(path: Path) -> Any:
    """The `experiment` that a config file defines.

    Raises:
      InputError: there is no such file, it fails, or it does not define one.
    """
    from jaxalign.evaluation.experiment import Experiment

    spec = importlib.util.spec_from_file_location("jaxalign_experiment", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f"{path}: there is no such experiment file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path}: it fails with {type(error).__name__}: {error}") from error
    experiment = getattr(module, "experiment", None)
    if not isinstance(experiment, Experiment):
        raise InputError(f"{path}: it must define `experiment`, a jaxalign.evaluation.experiment.Experiment")
    return experiment


def show(experiment: Any, table: Any) -> None:
    """Prints the table of reward models and the texts side by side."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    columns = {
        "rm_accuracy": "RM accuracy",
        "rm_accuracy_micro": "(micro)",
        "policy_accuracy_sum": "policy acc. (sum)",
        "weight_sum": "w",
        "policy_accuracy_mean": "policy acc. (mean)",
        "weight_mean": "w",
    }
    shown = Table(title=f"{experiment.name}: {'; '.join(table.notes)}")
    shown.add_column("reward model")
    for title in columns.values():
        shown.add_column(title, justify="right")
    for row in table.rows:
        cells = [row.get(name) for name in columns]
        texts = [
            "" if v is None else f"{v:g}" if name.startswith("weight") else f"{100 * v:.1f}"
            for name, v in zip(columns, cells, strict=True)
        ]
        shown.add_row(escape(row["method"]), *texts)
    console.print(shown)
    console.print(
        "Accuracies in %, mean over users; 'reference' is the language model alone. Policy accuracy: sequence form."
    )
    last = None
    for row in table.texts:
        if (row["user"], row["prompt"]) != last:
            last = (row["user"], row["prompt"])
            console.print(f"\n[bold]{escape(row['user'])}[/bold]  {escape(row['prompt'])}", highlight=False)
        utility = f" (true utility {row['true_utility']:+.2f})" if "true_utility" in row else ""
        console.print(
            f"  [cyan]{escape(row['method'])}[/cyan]{utility}: {escape(' '.join((row['text'] or '').split()))}",
            highlight=False,
        )
    console.print(f"\nResults: {experiment.out or Path('results') / experiment.name}", highlight=False)

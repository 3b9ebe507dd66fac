"""`jaxalign methods`: the personal reward models that exist, and what each costs."""

import dataclasses
import inspect
import json
from collections.abc import Sequence
from typing import Any

from jaxalign.cli import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Lists reward models; with a name, shows the formula, source, defaults and deviations of one."""

    name: str | None = None
    """Describe this one."""

    json: bool = False
    """One JSON line per method: name, summary, cost, hyper-parameters with defaults, grid."""


def main(arguments: Sequence[str]) -> int:
    """Prints the list and returns 0."""
    options = flags.parse("methods", Options, arguments)
    from jaxalign.rewards import registry
    from jaxalign.rewards.tuning.registry import METHODS

    names = (*registry.names(), *METHODS) if options.name is None else (options.name,)
    kinds: list[Any] = [METHODS[name] if name in METHODS else registry.find(name) for name in names]
    if options.json:
        for kind in kinds:
            described = registry.describe(kind())
            grid = {field: list(values) for field, values in getattr(kind, "grid", {}).items()}
            line = {**described, "summary": kind.summary, "cost": kind.cost, "grid": grid}
            print(json.dumps(line, ensure_ascii=False))
        return 0
    if options.name is not None:
        print(f"{kinds[0].name}: {kinds[0].summary}\n\n{inspect.getdoc(kinds[0])}")
        return 0
    print("Extra work per scored text and user is in products; one product [width x rank] per text serves all users.")
    print(f"{', '.join(METHODS)} tune the language model (`jaxalign tune`): all its passes per generated token.\n")
    rows = [("name", "reward", "extra work")] + [(kind.name, kind.summary, kind.cost) for kind in kinds]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0

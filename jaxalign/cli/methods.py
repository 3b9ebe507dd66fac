"""`jaxalign methods`: the personal reward models that exist, what each costs, and what plugins add beside them."""

import dataclasses
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxalign.cli import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Lists reward models, and the guidances, selections, sources and measures that plugins add; with a name, shows the
    formula, source, defaults and deviations of a reward model."""

    name: str | None = None
    """Describe this one."""

    json: bool = False
    """One JSON line per method: name, summary, cost, hyper-parameters with defaults, grid, and where it is from. One
    for each other thing that a plugin adds: kind, name, and where it is from."""

    plugins: tuple[Path, ...] = ()
    """Python files whose additions are listed too; those of installed packages are."""


def main(arguments: Sequence[str]) -> int:
    """Prints the list and returns 0."""
    options = flags.parse("methods", Options, arguments)
    from jaxalign import plugins
    from jaxalign.rewards import registry
    from jaxalign.rewards.tuning.registry import METHODS

    plugins.load(options.plugins)
    names = (*registry.names(), *METHODS) if options.name is None else (options.name,)
    kinds: list[Any] = [METHODS[name] if name in METHODS else registry.find(name) for name in names]
    if options.json:
        for kind in kinds:
            described = registry.describe(kind())
            grid = {field: list(values) for field, values in getattr(kind, "grid", {}).items()}
            line = {**described, "summary": kind.summary, "cost": kind.cost, "grid": grid}
            print(json.dumps({**line, "from": _origin(registry.METHODS, kind.name)}, ensure_ascii=False))
        for what, name, origin in _others() if options.name is None else ():
            print(json.dumps({"kind": what, "name": name, "from": origin}, ensure_ascii=False))
        return 0
    if options.name is not None:
        print(f"{kinds[0].name}: {kinds[0].summary}\n\n{inspect.getdoc(kinds[0])}")
        return 0
    print("Extra work per scored text and user is in products; one product [width x rank] per text serves all users.")
    print(f"{', '.join(METHODS)} tune the language model (`jaxalign tune`): all its passes per generated token.\n")
    heads = ("name", "reward", "extra work", "from")
    _table([heads, *((k.name, k.summary, k.cost, _origin(registry.METHODS, k.name)) for k in kinds)])
    if others := _others():
        print("\nAdded by plugins:")
        _table([("kind", "name", "from"), *others])
    return 0


def _origin(registry: Any, name: str) -> str:
    plugin = registry.plugin(name)
    return "jaxalign" if plugin is None else plugin.name


def _others() -> list[tuple[str, str, str]]:
    """Kind, name and origin of all that was added and is no reward model."""
    from jaxalign.data.sources.registry import SOURCES
    from jaxalign.decoding.registry import GUIDANCES, SELECTIONS
    from jaxalign.metrics.measures import MEASURES

    registries: tuple[Any, ...] = (GUIDANCES, SELECTIONS, SOURCES, MEASURES)
    return [(found.kind, name, _origin(found, name)) for found in registries for name in found.added]


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

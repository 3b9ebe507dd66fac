"""What `jaxalign run` prints when it is done: the table of methods, what to deploy, and where everything is."""

from typing import Any


def show(experiment: Any, results: Any) -> None:
    """Prints the main numbers of a run; all of them are in its report."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    rows = results.metrics
    text_measure = next((name for name in ("true_utility", "rouge1") if any(r["measure"] == name for r in rows)), None)
    columns: list[tuple[str, dict[str, Any], float]] = [
        ("RM accuracy, seen", {"measure": "rm_accuracy", "group": "seen", "shots": None}, 100),
        ("unseen", {"measure": "rm_accuracy", "group": "unseen", "shots": None}, 100),
    ]
    for group in ("seen", "unseen"):
        wanted = {"measure": "policy_accuracy", "group": group, "length": experiment.length}
        columns.append(("policy accuracy, seen" if group == "seen" else "unseen", wanted, 100))
    if text_measure is not None:
        columns.append((text_measure.replace("_", " "), {"measure": text_measure, "group": "seen"}, 1))
    table = Table(title=escape(experiment.title or experiment.name))
    table.add_column("method", overflow="fold")
    for title, _, _ in columns:
        table.add_column(title, justify="right")
    table.add_column("w", justify="right")
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method and row["chosen"] and row["average"] == "macro"]
        cells = [_cell(_find(own, wanted, experiment), scale) for _, wanted, scale in columns]
        weight = _find(own, columns[2][1], experiment)
        if any(cells):
            table.add_row(
                escape(method), *cells, "" if not weight or weight["weight"] is None else f"{weight['weight']:g}"
            )
    console.print(table)
    console.print(
        "Accuracies in %, means over users, 95 % bootstrap intervals over users. Policy accuracy in the form "
        f"'{experiment.form}' per token; 'plain' is the language model alone, 'longer' prefers the longer text."
        if experiment.length == "mean"
        else f"Accuracies in %, means over users. Policy accuracy in the form '{experiment.form}', summed over tokens."
    )
    if results.selection is not None:
        console.print(f"\n[bold]Deploy:[/bold] {escape(str(results.selection['deploy']['why']))}")
        for row in results.selection["correlations"][:1]:
            tau = "undefined" if row["tau_b"] is None else f"{row['tau_b']:.2f}"
            console.print(f"Kendall's tau between RM accuracy and policy accuracy: {tau}. {escape(row['note'] or '')}")
    console.print(f"\nReport:  {results.report}\nResults: {results.folder}", highlight=False)


def _find(rows: list[dict[str, Any]], wanted: dict[str, Any], experiment: Any) -> dict[str, Any] | None:
    forms = (experiment.form, "likelihood", None)
    for row in rows:
        if all(row[name] == value for name, value in wanted.items()) and row["form"] in forms:
            return row
    return None


def _cell(row: dict[str, Any] | None, scale: float) -> str:
    if row is None or row["value"] is None:
        return ""
    digits = 1 if scale == 100 else 3
    shown = f"{scale * row['value']:.{digits}f}"
    if row["low"] is None:
        return shown
    return f"{shown} [{scale * row['low']:.{digits}f}, {scale * row['high']:.{digits}f}]"

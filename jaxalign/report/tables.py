"""Tables: rows of names and estimates, as CSV, on a console, and (by the template) in the page."""

import csv
import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxalign.files import write_atomic
from jaxalign.report import numbers
from jaxalign.report.clean import clean, line
from jaxalign.report.numbers import Estimate, Measure, Numbers

# A spreadsheet runs a cell that begins with one of these, in ASCII or full width, also after blanks or a quote.
_FORMULA = re.compile("^[\\s'\"]*[=+\\-@\uff1d\uff0b\uff0d\uff20\\t\\r\\n|%]")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column; `measure` says how its estimates are written, `head` groups neighbouring columns."""

    key: str
    title: str
    measure: Measure | None = None
    head: str = ""

    def text(self, value: Any) -> str:
        """A cell as plain text."""
        if value is None:
            return "\u2013"
        if isinstance(value, Estimate):
            return (self.measure or Measure(self.key)).text(value.value)
        if isinstance(value, float):
            return (self.measure or Measure(self.key)).text(value)
        return str(value)

    def interval(self, value: Any) -> str:
        """The interval of a cell, or an empty string."""
        return (
            (self.measure or Measure(self.key)).interval(value.low, value.high) if isinstance(value, Estimate) else ""
        )


@dataclasses.dataclass(frozen=True)
class Table:
    """A table; cells are by the key of their column, and a missing one is empty."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    note: str = ""

    def is_best(self, column: Column, value: Any) -> bool:
        """Whether no other row is better in this column; never where no end is better, or all are equal."""
        if column.measure is None or column.measure.better is None or not isinstance(value, Estimate):
            return False
        values = [cell.value for row in self.rows if isinstance(cell := row.get(column.key), Estimate)]
        return len(set(values)) > 1 and value.value == numbers.best(values, column.measure.better)


def columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """A column for each key of the rows, written plainly; for the numbers of figures."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [Column(key, key.replace("_", " "), numbers.MEASURES.get(key)) for key in keys]


def label_text(label: str) -> str:
    """A label of the selection analysis, such as `validation policy_accuracy score sum`, as words for a sentence."""
    words = label.split(" ")
    validation = words[0] == "validation"
    head, *rest = words[1:] if validation and len(words) > 1 else words
    if head not in numbers.MEASURES:
        return label
    name = numbers.MEASURES[head].label
    name = name if any(letter.isupper() for letter in name[1:]) else name.lower()
    return name + (f" ({', '.join(rest)})" if rest else "") + (" on validation users" if validation else "")


def plain_words(text: str) -> str:
    """A sentence of the selection analysis with `policy_accuracy` and the like as words."""
    for name in numbers.MEASURES:
        if "_" in name:
            text = re.sub(rf"\b{name}\b", label_text(name), text)
    return text


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = clean(str(value))
    return "'" + text if _FORMULA.match(text) else text


def write_csv(path: Path, table: Table) -> None:
    """Writes a table; an estimate takes the columns KEY, KEY_low and KEY_high.

    Text that a spreadsheet would run as a formula gets an apostrophe in front; numbers are numbers.
    """
    wide = {column.key for column in table.columns if any(isinstance(r.get(column.key), Estimate) for r in table.rows)}
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    heads: list[str] = []
    for column in table.columns:
        heads += [column.key, f"{column.key}_low", f"{column.key}_high"] if column.key in wide else [column.key]
    writer.writerow(map(_cell, heads))
    for row in table.rows:
        cells: list[Any] = []
        for column in table.columns:
            value = row.get(column.key)
            if column.key in wide:
                cells += [value.value, value.low, value.high] if isinstance(value, Estimate) else [value, None, None]
            else:
                cells.append(value)
        writer.writerow(map(_cell, cells))
    write_atomic(path, buffer.getvalue())


def to_console(table: Table, console: Any) -> None:
    """Prints a table with rich, intervals in the second line of a cell."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table as RichTable

    shown = RichTable(title=table.title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in table.columns:
        left = column.key in ("method", "measure", "group")
        shown.add_column(escape(column.title), justify="left" if left else "right", vertical="top")
    for row in table.rows:
        cells = []
        for column in table.columns:
            value = row.get(column.key)
            text = escape(line(column.text(value), 60))
            between = column.interval(value)
            cells.append(f"{text}\n[dim]{between}[/dim]" if between else text)
        shown.add_row(*cells)
    console.print(shown)


def accuracy(found: Numbers) -> Table:
    """RM accuracy and headline policy accuracy of every method, the best policy accuracy first."""
    rm, policy = numbers.measure("rm_accuracy"), numbers.measure("policy_accuracy")
    heads = [Column("method", "Method")]
    heads += [Column(f"rm_{group}", group, rm, "RM accuracy (%)") for group in found.groups]
    heads += [
        Column(f"policy_{group}_{length}", f"{group}, {length}", policy, "Policy accuracy (%)")
        for group in found.groups
        for length in ("sum", "mean")
    ]
    heads += [Column("worst_tenth", "worst tenth", policy, "Policy accuracy (%)"), Column("weight", "w")]
    rows = []
    for method in found.methods:
        row: dict[str, Any] = {"method": method}
        for group in found.groups:
            row[f"rm_{group}"] = found.get("rm_accuracy", method, group)
            for length in ("sum", "mean"):
                row[f"policy_{group}_{length}"] = found.policy(method, group, length)
        form = found.form(method, found.group)
        row["worst_tenth"] = found.average(
            "policy_accuracy", method, found.group, "worst_tenth", form=form, length=found.length
        )
        chosen = found.policy(method, found.group, found.length)
        row["weight"] = None if chosen is None or chosen.weight is None else f"{chosen.weight:g}"
        if any(isinstance(value, Estimate) for value in row.values()):
            rows.append(row)
    first = f"policy_{found.group}_{found.length}"
    rows.sort(key=lambda row: -row[first].value if row[first] else 1.0)
    note = (
        "Accuracies are means over users, with 95 % intervals over users; the best of a column is bold. Policy "
        "accuracy is that of the form `policy` at the weight that validation users chose; of methods without a reward "
        "model it is that of the prompted language model's likelihood. `sum` adds log-probabilities over a response "
        "and favours short ones, `mean` divides by its tokens. The worst tenth of users and w are those of "
        f"{found.group} users and `{found.length}`, which also order the rows."
    )
    return _dense(Table("accuracy", "Accuracy", heads, rows, note))


def brief(found: Numbers) -> Table:
    """RM accuracy and policy accuracy of the group that the report is about, narrow enough for a terminal."""
    table = accuracy(found)
    names = {"method": "method", f"rm_{found.group}": "RM acc. %"}
    names |= {f"policy_{found.group}_{length}": f"policy acc. %\n({length})" for length in ("sum", "mean")}
    kept = [
        dataclasses.replace(column, title=names.get(column.key, column.title), head="")
        for column in table.columns
        if column.key in (*names, "weight")
    ]
    return dataclasses.replace(table, title=f"{found.group} users", columns=kept)


def forms(found: Numbers) -> Table:
    """The three forms of policy accuracy in both length conventions, for the group that the report is about."""
    policy = numbers.measure("policy_accuracy")
    names = {"policy": "policy", "score": "score", "sequence": "sequence", "likelihood": "likelihood"}
    heads = [Column("method", "Method")]
    heads += [
        Column(f"{form}_{length}", length, policy, title) for form, title in names.items() for length in ("sum", "mean")
    ]
    rows = []
    for method in found.methods:
        cells = {
            f"{form}_{length}": found.get("policy_accuracy", method, found.group, form, length)
            for form in names
            for length in ("sum", "mean")
        }
        if any(cells.values()):
            rows.append({"method": method, **cells})
    note = (
        "`policy`: does the adapted language model prefer the right response? `score`: does the scoring function that "
        "the search maximises? `sequence`: log-probability and reward of the whole response, the best-of-n view. "
        "`likelihood`: the prompted language model without a reward."
    )
    title = f"Forms of policy accuracy (%), {found.group} users"
    return _dense(Table("forms", title, heads, rows, note))


def quality(found: Numbers) -> Table:
    """Generation quality of the group that the report is about."""
    names = found.quality(found.group)
    heads = [Column("method", "Method")]
    heads += [Column(name, numbers.measure(name).axis, numbers.measure(name)) for name in names]
    rows = []
    for method in found.methods:
        cells = {name: found.get(name, method, found.group) for name in names}
        if any(cells.values()):
            rows.append({"method": method, **cells})
    notes = [f"{numbers.measure(n).label}: {numbers.measure(n).note}." for n in names if numbers.measure(n).note]
    return _dense(Table("quality", f"Generated texts, {found.group} users", heads, rows, " ".join(notes)))


def _dense(table: Table) -> Table:
    """Without columns that no row fills."""
    kept = [c for c in table.columns if c.key == "method" or any(row.get(c.key) is not None for row in table.rows)]
    return dataclasses.replace(table, columns=kept)

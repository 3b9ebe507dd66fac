"""The error of one row: where it is, which field is wrong, and how to mend it."""

from jaxalign.errors import DataError


class RowError(DataError):
    """One row breaks the schema. `line` counts from 1 (rows of a Parquet file count from 1 too)."""

    def __init__(self, field: str, problem: str, mend: str, *, source: str = "", line: int = 0):
        self.field, self.problem, self.mend = field, problem, mend
        self.source, self.line = source, line
        super().__init__(field, problem, mend)

    def at(self, source: str, line: int) -> "RowError":
        """The same error with its place filled in."""
        return RowError(self.field, self.problem, self.mend, source=source, line=line)

    def __str__(self) -> str:
        place = [self.source] if self.source else []
        place += [f"line {self.line}"] if self.line else []
        place += [f"field '{self.field}'"] if self.field else []
        what = f"{self.problem}. {self.mend}"
        return f"{', '.join(place)}: {what}" if place else what

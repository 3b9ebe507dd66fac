"""The errors that a user can cause, and mend.

Every message says what is wrong, where (file, line, field, user), and what to do. The command line prints the message
of a `JaxalignError` without a traceback and exits with the error's `exit_status`; anything else is a bug in jaxalign.
"""

from typing import Any


class JaxalignError(Exception):
    """Base class of all errors that jaxalign raises on purpose."""

    exit_status = 2


class InputError(JaxalignError, ValueError):
    """A value, a file or a row that was given cannot be used as it is."""


class ModelError(JaxalignError):
    """A model folder, a configuration or a set of weights cannot be loaded."""


class DataError(InputError):
    """A data file, a row of it, or a data folder breaks the schema."""


class FitError(JaxalignError):
    """Fitting a reward model failed, for instance because it diverged."""


class DownloadError(JaxalignError):
    """A model or a data set could not be fetched."""


class PartialFailure(JaxalignError):
    """Some items of a batch failed, and the results of the others were written."""

    exit_status = 1


def shown(value: Any, limit: int = 80) -> str:
    """`value` as a message shows it: its `repr` in at most `limit` characters, whatever someone put into a file."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."

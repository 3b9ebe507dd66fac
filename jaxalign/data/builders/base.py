"""What all builders share: the features of a row, and the way from a folder to examples.

This is the only place of jaxalign, with the builders on top of it, that imports TensorFlow Datasets.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds

from jaxalign.data.prompts import Message
from jaxalign.data.schema import Completion, Preference
from jaxalign.data.sources.source import Source
from jaxalign.errors import DataError

_TEXT = tfds.features.Text
# A prompt is a string or messages: one of the two fields is empty. An absent group, split or kind is "", never an id.
_COMMON = {
    "user": _TEXT(),
    "prompt": _TEXT(),
    "messages": tfds.features.Sequence({"role": _TEXT(), "content": _TEXT()}),
    "group": _TEXT(),
    "split": _TEXT(),
}
PREFERENCE = {
    **_COMMON,
    "chosen": _TEXT(),
    "rejected": _TEXT(),
    "label": np.float64,
    "margin": np.float64,
    "kind": _TEXT(),
}
COMPLETION = {**_COMMON, "completion": _TEXT()}


class SourceBuilder(tfds.core.GeneratorBasedBuilder):
    """A builder of one source; subclasses say which, and how a folder becomes rows.

    Args:
      data: the folder with the source's files; None: TFDS's manual directory.
      kwargs: of TFDS, for instance `data_dir`.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First version."}
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Put the files of the source here, or give their folder as `data`."

    SOURCE: ClassVar[Source]
    FEATURES: ClassVar[dict[str, Any]] = PREFERENCE

    def __init__(self, *, data: str | Path | None = None, **kwargs: Any):
        self._data = None if data is None else Path(data)
        super().__init__(**{"file_format": "array_record", **kwargs})

    def rows(self, path: Path) -> Iterable[Preference | Completion]:
        """The rows of a folder. A row's own `split` names its TFDS split; without one it is in "train"."""
        raise NotImplementedError

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"{self.SOURCE.title}. {self.SOURCE.description}",
            features=tfds.features.FeaturesDict(self.FEATURES),
            homepage=self.SOURCE.homepage,
            citation=self.SOURCE.citation,
            license=self.SOURCE.licence,
            disable_shuffling=True,  # the order of the files; no result depends on it
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        path = Path(dl_manager.manual_dir) if self._data is None else self._data
        parts: dict[str, list[Preference | Completion]] = {}
        for row in self.rows(path):
            parts.setdefault(row.split or "train", []).append(row)
        if not parts:
            raise DataError(f"{path} holds no rows of {self.SOURCE.title}.")
        return {name: self._generate_examples(rows) for name, rows in sorted(parts.items())}

    def _generate_examples(self, rows: Iterable[Preference | Completion]) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from enumerate(map(to_example, rows))


def to_example(row: Preference | Completion) -> dict[str, Any]:
    """A row as TFDS stores it."""
    text, messages = (row.prompt, ()) if isinstance(row.prompt, str) else ("", row.prompt)
    example = {
        "user": row.user,
        "prompt": text,
        "messages": [message._asdict() for message in messages],
        "group": row.group or "",
        "split": row.split or "",
    }
    if isinstance(row, Completion):
        return {**example, "completion": row.completion}
    return {
        **example,
        "chosen": row.chosen,
        "rejected": row.rejected,
        "label": row.label,
        "margin": row.margin,
        "kind": row.kind or "",
    }


def from_example(example: dict[str, Any]) -> Preference | Completion:
    """The row of an example: the inverse of `to_example`."""
    text = {name: value.decode() for name, value in example.items() if isinstance(value, bytes)}
    roles, contents = example["messages"]["role"], example["messages"]["content"]
    messages = tuple(Message(a.decode(), b.decode()) for a, b in zip(roles, contents, strict=True))
    common: dict[str, Any] = {
        "user": text["user"],
        "prompt": messages or text["prompt"],
        "group": text["group"] or None,
        "split": text["split"] or None,
    }
    if "completion" in text:
        return Completion(**common, completion=text["completion"])
    return Preference(
        **common,
        chosen=text["chosen"],
        rejected=text["rejected"],
        label=float(example["label"]),
        margin=float(example["margin"]),
        kind=text["kind"] or None,
    )

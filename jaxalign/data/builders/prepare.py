"""Prepares a source once: from a folder, or from its pinned download, to ArrayRecord files and back to rows."""

import hashlib
import importlib
import types
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from jaxalign.data.sources.registry import SOURCES, rows
from jaxalign.data.sources.source import Download, Source
from jaxalign.errors import DataError, DownloadError, InputError
from jaxalign.files import cache_dir, sha256

_CLASSES = {
    "tldr": "tldr:Tldr",
    "prism": "prism:Prism",
    "lamp4": "lamp:Lamp4",
    "lamp5": "lamp:Lamp5",
    "lamp7": "lamp:Lamp7",
    "ukp": "ukp:Ukp",
    "acl_titles": "acl_titles:AclTitles",
    "preference_jsonl": "preference_jsonl:PreferenceJsonl",
}
NAMES = tuple(_CLASSES)


def prepare(name: str, *, data: str | Path | None = None, data_dir: str | Path | None = None) -> Any:
    """A prepared builder of the source `name`; what is prepared already from the same files is used as it is.

    Args:
      name: one of `NAMES`, or a data source that a plugin adds.
      data: the folder with the source's files (for `preference_jsonl` also a file); None: they are downloaded, where
        the source has a pinned download.
      data_dir: where the prepared data sets are kept; None: in jaxalign's cache folder.

    Returns:
      The `tfds.core.GeneratorBasedBuilder`; `as_data_source()` reads it, `read` gives rows.

    Raises:
      InputError: there is no such source.
      DataError: the folder has not the files that the source needs, or one of them breaks its layout.
      DownloadError: nothing can be downloaded, or it did not arrive as published.
    """
    builder_class = _builder_class(name)
    source: Source = builder_class.SOURCE
    folder = _downloaded(source) if data is None else Path(data)
    files = [folder] if folder.is_file() else _files(source, folder)
    # A folder of its own for each content: other files must not be answered from what was prepared before.
    kept = Path(data_dir) if data_dir is not None else cache_dir() / "tfds"
    plugin = SOURCES.plugin(name)
    fingerprint = _fingerprint(files, "" if plugin is None else plugin.version)
    builder = builder_class(data=folder, data_dir=str(kept / fingerprint))
    builder.download_and_prepare()
    return builder


def read(builder: Any, split: str | None = None) -> list[Any]:
    """The rows (`Preference` or `Completion`) of a prepared builder: of one TFDS split, or of all.

    Raises:
      InputError: there is no such split.
    """
    from jaxalign.data.builders.base import from_example

    names = sorted(builder.info.splits)
    if split is not None and split not in names:
        raise InputError(f"'{builder.info.name}' has no split '{split}'; it has {', '.join(names)}.")
    source = builder.as_data_source()
    return [from_example(example) for name in names if split in (None, name) for example in source[name]]


def _files(source: Source, folder: Path) -> list[Path]:
    layout = source.layouts[source.layout_of(folder)]
    return sorted(path for pattern in layout for path in folder.glob(pattern))


def _builder_class(name: str) -> Any:
    if name in _CLASSES:
        module, class_name = _CLASSES[name].split(":")
        return getattr(importlib.import_module(f"jaxalign.data.builders.{module}"), class_name)
    found = SOURCES.find(name)
    from jaxalign.data.builders.base import COMPLETION, PREFERENCE, SourceBuilder

    # Not registered with TFDS: a plugin may be read again after a change, and TFDS keeps the first class of a name.
    content = {
        "__module__": __name__,
        "__doc__": f"{found.source.title}, of a plugin.",
        "name": name,
        "SOURCE": found.source,
        "FEATURES": COMPLETION if found.own_texts else PREFERENCE,
        "rows": lambda self, path: rows(name, path),
    }
    return types.new_class(name, (SourceBuilder,), {"skip_registration": True}, lambda space: space.update(content))


def _fingerprint(files: list[Path], reader: str) -> str:
    """Of the files, and of the `reader` where it is none of jaxalign's."""
    parts = [f"{path.name} {sha256(path)}" for path in files]
    parts += [reader] if reader else []
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _downloaded(source: Source) -> Path:
    if not source.downloads:
        expected = ", or ".join(" and ".join(patterns) for patterns in source.layouts)
        raise DownloadError(
            f"{source.title} is not downloaded by jaxalign (licence: {source.licence}). Get {expected} from "
            f"{source.homepage} and give their folder with --data."
        )
    folder = cache_dir() / "downloads" / source.name
    for download in source.downloads:
        if not (folder / download.name).exists():
            fetch(download, folder)
    return folder


def fetch(download: Download, folder: Path) -> None:
    """Downloads one file into `folder`; it appears there only if its checksum is the published one.

    Raises:
      DownloadError: it cannot be reached, or is not the file that was published.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target, partial = folder / download.name, folder / f".{download.name}.part"
    by_hand = f"Get {download.name} by hand and give its folder with --data."
    try:
        with urllib.request.urlopen(download.url, timeout=60) as answer, partial.open("wb") as file:
            received = 0
            while piece := answer.read(1 << 20):
                received += len(piece)
                if received > download.size:
                    break
                file.write(piece)
        found = sha256(partial)
        if received != download.size or found != download.sha256:
            raise DownloadError(
                f"{download.url} gave {received} bytes with sha256 {found}; published are {download.size} bytes with "
                f"{download.sha256}. {by_hand}"
            )
        partial.replace(target)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise DownloadError(f"{download.url} cannot be reached ({error}). {by_hand}") from error
    finally:
        partial.unlink(missing_ok=True)


def describe(name: str, builder: Any) -> list[str]:
    """What was prepared, as lines of text: rows per split, licence, where it is."""
    source: Source = builder.SOURCE
    splits = {split: builder.info.splits[split].num_examples for split in sorted(builder.info.splits)}
    if not splits:
        raise DataError(f"'{name}' was prepared without rows.")
    return [
        f"{source.title}: " + ", ".join(f"{split} {count:,}" for split, count in splits.items()),
        f"licence: {source.licence}",
        f"homepage: {source.homepage}",
        f"prepared in {builder.data_dir}",
    ]

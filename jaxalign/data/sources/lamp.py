"""LaMP-4 (news headlines), LaMP-5 (scholarly titles), LaMP-7 (tweets): texts of a user, and one more to write."""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

from jaxalign.data.prompts import clean
from jaxalign.data.schema import Completion, read_id
from jaxalign.data.sources.source import Source, field, json_document
from jaxalign.errors import DataError

_CITATION = """@inproceedings{salemi-etal-2024-lamp,
  title = {{LaMP}: When Large Language Models Meet Personalization},
  author = {Salemi, Alireza and Mysore, Sheshera and Bendersky, Michael and Zamani, Hamed},
  booktitle = {Proceedings of the 62nd Annual Meeting of the Association for Computational Linguistics},
  year = {2024}
}"""
_LICENCE = "CC BY-NC-SA 4.0 for the benchmark; the texts under the terms of their own sources"
_PARTS = (("train", "train"), ("dev", "validation"), ("test", "test"))


@dataclasses.dataclass(frozen=True)
class Task:
    """How one task of LaMP is read.

    Attributes:
      text: the profile field that the user's text answers; None: profile texts stand alone.
      own: the profile field with the user's own text.
      marker: what precedes the text to answer in a question's `input`.
      request: the prompt, with the text appended where there is one.
    """

    source: Source
    text: str | None
    own: str
    marker: str
    request: str


def _source(number: int, what: str) -> Source:
    return Source(
        name=f"lamp{number}",
        title=f"LaMP-{number}",
        description=f"{what} Profile items are rows of split 'support', the question's output is the row of split "
        "'query', so that the profile is the user's history. Two items with one text are one group, also across users. "
        "A test part without published outputs gives history only.",
        homepage="https://lamp-benchmark.github.io/download",
        licence=_LICENCE,
        citation=_CITATION,
        layouts=(
            ("train_questions.json", "train_outputs.json"),
            ("dev_questions.json", "dev_outputs.json"),
            ("train/train_questions.json", "train/train_outputs.json"),
            ("dev/dev_questions.json", "dev/dev_outputs.json"),
        ),
    )


TASKS = {
    4: Task(
        source=_source(4, "Headlines that journalists wrote for their own articles."),
        text="text",
        own="title",
        marker="article:",
        request="Write a headline for the following article.\n\n",
    ),
    5: Task(
        source=_source(5, "Titles that scholars gave their own abstracts."),
        text="abstract",
        own="title",
        marker="paper:",
        request="Write a title for the following abstract of a paper.\n\n",
    ),
    7: Task(
        source=_source(7, "Tweets; the question gives a paraphrase of one."),
        text=None,
        own="text",
        marker=":",
        request="Paraphrase the following tweet in your own style.\n\n",
    ),
}
# A profile's tweets answer nothing: as history they stand under a request without content.
_TWEET = "Write a tweet in your own style."


def completions(folder: Path, task: int, part: str | None = None) -> Iterator[Completion]:
    """The texts of a folder in the official layout, user by user.

    Args:
      task: 4, 5 or 7.
      part: "train", "validation" or "test"; None: all that the folder has.

    Raises:
      DataError: the folder has no part of the task, or a file breaks the official layout.
    """
    folder = Path(folder)
    TASKS[task].source.layout_of(folder)
    for official, name in _PARTS:
        questions = next(
            (path for path in (folder / official, folder) if (path / f"{official}_questions.json").exists()), None
        )
        if questions is not None and part in (None, name):
            yield from _part(questions, official, task)


def _part(folder: Path, official: str, number: int) -> Iterator[Completion]:
    task = TASKS[number]
    path = folder / f"{official}_outputs.json"
    outputs: dict[str, str] = {}
    if path.exists():
        document = json_document(path)
        if str(document.get("task") if isinstance(document, dict) else None) != f"LaMP_{number}":
            raise DataError(f"{path.name} is not of task LaMP_{number}. Give the folder of LaMP-{number}.")
        outputs = {
            read_id(gold.get("id"), "id"): clean(field(gold, "output", path, line))
            for line, gold in enumerate(field(document, "golds", path, 0, list), start=1)
        }
    elif official != "test":
        raise DataError(f"{folder} lacks {path.name}, which belongs to {official}_questions.json.")
    path = folder / f"{official}_questions.json"
    questions = json_document(path)
    if not isinstance(questions, list):
        raise DataError(f"{path.name} is no list of questions. Get the file again.")
    for line, question in enumerate(questions, start=1):
        name = read_id(field(question, "id", path, line), "id")
        # In the user split each question is a user; the time split states them apart.
        user = read_id(question.get("user_id", f"{official}-{name}"), "user_id")
        yield from _history(question, task, user, path, line)
        if not outputs:
            continue
        if name not in outputs:
            raise DataError(f"{path.name}, question {name}: there is no output for it. Get both files again.")
        text = _after(clean(field(question, "input", path, line)), task.marker, path, name)
        if outputs[name].strip():
            yield Completion(
                user=user,
                prompt=task.request + text,
                completion=outputs[name],
                group=_group(outputs[name] if task.text is None else text),
                split="query",
            )


def _history(question: dict, task: Task, user: str, path: Path, line: int) -> Iterator[Completion]:
    seen = set()
    for item in field(question, "profile", path, line, list):
        own = clean(field(item, task.own, path, line))
        text = None if task.text is None else clean(field(item, task.text, path, line))
        group = _group(own if text is None else text)
        if not own.strip() or group in seen:
            continue
        seen.add(group)
        prompt = _TWEET if text is None else task.request + text
        yield Completion(user=user, prompt=prompt, completion=own, group=group, split="support")


def _after(text: str, marker: str, path: Path, name: str) -> str:
    _, found, rest = text.partition(marker)
    if not found:
        raise DataError(f"{path.name}, question {name}: input has no '{marker}'. Give the folder of the task named.")
    return rest.strip()


def _group(text: str) -> str:
    """One id for equal texts, whatever their white space: the profile ids are not the same for co-authors."""
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=12).hexdigest()

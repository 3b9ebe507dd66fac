"""UKPConvArg1: which of two arguments for the same stance each of about five crowd workers found more convincing."""

import csv
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from jaxalign.data.prompts import clean
from jaxalign.data.row_error import RowError
from jaxalign.data.schema import Preference, read_id
from jaxalign.data.sources.source import Source, field, objects
from jaxalign.errors import DataError

SOURCE = Source(
    name="ukp",
    title="UKPConvArg1",
    description="One row a vote. A vote 'equal' is a tie. The group is the pair of texts, since several people judged "
    "it; arguments of a debate with the same text count as one, so that no pair of texts can cross a split. A "
    "vote between two copies of one text is a tie, whatever was voted.",
    homepage="https://github.com/UKPLab/acl2016-convincing-arguments/tree/a5e39538e0e55a2e9f417ef3c86e7e62610f464b"
    "/data/UKPConvArg1-full-XML",
    licence="CC BY 4.0; arguments from createdebate.com (CC BY 3.0) and convinceme.net (public domain)",
    citation="""@inproceedings{habernal-gurevych-2016-argument,
  title = {Which argument is more convincing? Analyzing and predicting convincingness of Web arguments using
           bidirectional LSTM},
  author = {Habernal, Ivan and Gurevych, Iryna},
  booktitle = {Proceedings of the 54th Annual Meeting of the Association for Computational Linguistics},
  year = {2016}
}""",
    layouts=(("arguments.jsonl", "votes.csv"), ("*.xml",)),
)


def prompt_for(title: str, stance: str) -> str:
    """The request that both arguments answer."""
    return f'Write a short, convincing argument for the debate "{title}", for the stance "{stance}".'


def preferences(folder: Path) -> Iterator[Preference]:
    """The votes of a folder in either layout, in file order.

    Raises:
      DataError: the folder has neither layout, or a file breaks it.
    """
    folder = Path(folder)
    yield from _tables(folder) if SOURCE.layout_of(folder) == 0 else _xml(folder)


class _Debates:
    """Arguments by id, with the same text in the same debate under one id."""

    def __init__(self):
        self.arguments: dict[str, tuple[str, str, str]] = {}  # id -> topic, prompt, text
        self.first: dict[tuple[str, str], str] = {}

    def add(self, name: str, topic: str, title: str, stance: str, text: str) -> None:
        text = clean(text)
        if not text.strip():
            raise RowError("text", f"of argument {name} is empty", "Get the file again.")
        self.arguments[name] = (topic, clean(prompt_for(title, stance)), text)
        self.first.setdefault((topic, text), name)

    def vote(self, user: str, name_1: str, name_2: str, vote: str) -> Preference:
        """`vote` is "1", "2" or "tie"."""
        topic_1, prompt, text_1 = self.arguments[name_1]
        topic_2, _, text_2 = self.arguments[name_2]
        pair = sorted((self.first[topic_1, text_1], self.first[topic_2, text_2]))
        chosen, rejected = (text_2, text_1) if vote == "2" else (text_1, text_2)
        return Preference(
            user=user,
            prompt=prompt,
            chosen=chosen,
            rejected=rejected,
            group="_".join(pair),
            label=0.5 if vote == "tie" or text_1 == text_2 else 1.0,
        )


def _tables(folder: Path) -> Iterator[Preference]:
    debates = _Debates()
    path = folder / "arguments.jsonl"
    for line, row in objects(path):
        name = read_id(row.get("id"), "id")
        debates.add(name, *(field(row, key, path, line) for key in ("topic", "title", "stance", "text")))
    path = folder / "votes.csv"
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        needed = ["user", "argument_1", "argument_2", "vote"]
        if missing := [name for name in needed if name not in (reader.fieldnames or [])]:
            raise DataError(f"{path.name} has no column {', '.join(missing)}. Its header must be {','.join(needed)}.")
        for row in reader:
            line = reader.line_num
            for name in ("argument_1", "argument_2"):
                if row[name] not in debates.arguments:
                    problem = f"is '{row[name]}', which arguments.jsonl lacks"
                    raise RowError(name, problem, "Get both files again.", source=path.name, line=line)
            if row["vote"] not in ("1", "2", "tie"):
                raise RowError("vote", f"is '{row['vote']}'", "It is 1, 2 or tie.", source=path.name, line=line)
            yield debates.vote(read_id(row["user"], "user"), row["argument_1"], row["argument_2"], row["vote"])


def _xml(folder: Path) -> Iterator[Preference]:
    votes = {"a1": "1", "a2": "2", "equal": "tie"}
    for path in sorted(folder.glob("*.xml")):
        debates = _Debates()
        try:
            root = ElementTree.parse(path).getroot()
        except ElementTree.ParseError as error:
            raise DataError(f"{path.name} is not XML ({error}). Get the file again.") from error
        pairs = root.findall("annotatedArgumentPair")
        if not pairs:
            raise DataError(f"{path.name} holds no annotatedArgumentPair: it is not a file of UKPConvArg1.")
        # All arguments first: a pair's group depends on which of the debate's arguments have the same text.
        for pair in pairs:
            for side in ("arg1", "arg2"):
                name = _text(pair, f"{side}/id", path)
                title, stance = _text(pair, "debateMetaData/title", path), _text(pair, f"{side}/stance", path)
                debates.add(name, path.stem, title, stance, _text(pair, f"{side}/text", path))
        for pair in pairs:
            names = _text(pair, "arg1/id", path), _text(pair, "arg2/id", path)
            for assignment in pair.iterfind("mTurkAssignments/mTurkAssignment"):
                value = _text(assignment, "value", path)
                if value not in votes:
                    raise DataError(f"{path.name}, pair {'_'.join(names)}: value is '{value}', not a1, a2 or equal.")
                yield debates.vote(read_id(_text(assignment, "turkID", path), "turkID"), *names, votes[value])


def _text(element: ElementTree.Element, tag: str, path: Path) -> str:
    text = element.findtext(tag)
    if not text:
        pair = element.findtext("id") or element.findtext("assignmentId") or "?"
        raise DataError(f"{path.name}, element {pair}: {tag} is missing or empty. Get the file again.")
    return text

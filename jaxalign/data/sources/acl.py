"""Titles that authors wrote for their own abstracts, from the ACL Anthology."""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from jaxalign.data.prompts import clean
from jaxalign.data.row_error import RowError
from jaxalign.data.schema import Completion, read_id
from jaxalign.data.sources.source import Source, field, objects
from jaxalign.errors import DataError

SOURCE = Source(
    name="acl_titles",
    title="ACL Anthology titles",
    description="One row an author of a paper: the abstract is the prompt, the title the completion, the paper the "
    "group. A title belongs to each of its authors, so 'own text' means co-authored text. From the official XML: "
    "papers of 2016 and later, authors with at least 8 of them; an author is the Anthology's id where it has one, or "
    "the name.",
    homepage="https://github.com/acl-org/acl-anthology (folder data/xml)",
    licence="CC BY 4.0 (papers of 2016 and later)",
    citation="""@misc{acl-anthology,
  title = {The {ACL} Anthology},
  author = {{Association for Computational Linguistics}},
  howpublished = {https://aclanthology.org}
}""",
    layouts=(("papers.jsonl", "authorship.csv"), ("*.xml",)),
)
FIRST_YEAR = 2016
MIN_PAPERS = 8


def prompt_for(abstract: str) -> str:
    """The request that a title answers."""
    return f"Write a title for the following abstract of a paper.\n\n{abstract}"


def completions(folder: Path, first_year: int = FIRST_YEAR, min_papers: int = MIN_PAPERS) -> Iterator[Completion]:
    """The titles of a folder in either layout, once for each author.

    Args:
      first_year: papers before it are left out.
      min_papers: authors with fewer papers are left out.

    Raises:
      DataError: the folder has neither layout, or a file breaks it.
    """
    folder = Path(folder)
    read = _tables if SOURCE.layout_of(folder) == 0 else _xml
    papers, authorship = read(folder, first_year)
    counts = Counter(user for user, _ in authorship)
    for user, paper in authorship:
        if counts[user] >= min_papers:
            title, abstract = papers[paper]
            yield Completion(user=user, prompt=prompt_for(abstract), completion=title, group=paper)


Papers = dict[str, tuple[str, str]]


def _tables(folder: Path, first_year: int) -> tuple[Papers, list[tuple[str, str]]]:
    papers: Papers = {}
    old = set()
    path = folder / "papers.jsonl"
    for line, row in objects(path):
        name = read_id(row.get("paper"), "paper")
        title, abstract = (clean(field(row, key, path, line)) for key in ("title", "abstract"))
        if field(row, "year", path, line, int) < first_year:
            old.add(name)
        else:
            papers[name] = (title, abstract)
    path = folder / "authorship.csv"
    authorship = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        if missing := [name for name in ("user", "paper") if name not in (reader.fieldnames or [])]:
            raise DataError(f"{path.name} has no column {', '.join(missing)}. Its header must begin with user,paper.")
        for row in reader:
            if row["paper"] in papers:
                authorship.append((read_id(row["user"], "user"), row["paper"]))
            elif row["paper"] not in old:
                problem = f"is '{row['paper']}', which papers.jsonl lacks"
                raise RowError("paper", problem, "Get both files again.", source=path.name, line=reader.line_num)
    return papers, authorship


def _xml(folder: Path, first_year: int) -> tuple[Papers, list[tuple[str, str]]]:
    papers: Papers = {}
    authors: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.glob("*.xml")):
        try:
            collection = ElementTree.parse(path).getroot()
        except ElementTree.ParseError as error:
            raise DataError(f"{path.name} is not XML ({error}). Get the file again.") from error
        if collection.tag != "collection":
            raise DataError(f"{path.name} begins with '{collection.tag}', not 'collection': no file of the Anthology.")
        for volume in collection.iterfind("volume"):
            year = volume.findtext("meta/year") or ""
            if not year.isdecimal():
                raise DataError(f"{path.name}, volume {volume.get('id')}: meta/year is '{year}'. Get the file again.")
            if int(year) < first_year:
                continue
            for paper in volume.iterfind("paper"):
                title, abstract = _plain(paper.find("title")), _plain(paper.find("abstract"))
                # Front matter, and papers whose abstract the Anthology does not have.
                if not title or not abstract:
                    continue
                name = _paper_id(collection.get("id", ""), volume.get("id", ""), paper.get("id", ""))
                papers[name] = (title, abstract)
                authors[name] = [user for author in paper.iterfind("author") if (user := _author(author))]
    return papers, [(user, paper) for paper in papers for user in dict.fromkeys(authors[paper])]


def _plain(element: ElementTree.Element | None) -> str:
    """The text of a title or abstract without its markup (`<fixed-case>`, `<tex-math>`, `<url>` and so on)."""
    return "" if element is None else clean(" ".join("".join(element.itertext()).split()))


def _author(element: ElementTree.Element) -> str:
    name = " ".join(filter(None, (_plain(element.find("first")), _plain(element.find("last")))))
    return element.get("id") or name


def _paper_id(collection: str, volume: str, paper: str) -> str:
    """The Anthology's own id: "2020.acl-main.12", or "P18-1012" for collections named in the old way."""
    if "." in collection:
        return f"{collection}-{volume}.{paper}"
    # Workshops number volumes with two digits and papers with two; the rest one and three.
    workshop = collection[:1] == "W" or collection == "C69" or (collection == "D19" and volume >= "5")
    return f"{collection}-{volume.zfill(2)}{paper.zfill(2)}" if workshop else f"{collection}-{volume}{paper.zfill(3)}"

"""OpenAI's TL;DR comparisons: which of two summaries of a Reddit post a worker preferred, with worker ids."""

from collections.abc import Iterator
from pathlib import Path

from jaxalign.data.prompts import clean
from jaxalign.data.row_error import RowError
from jaxalign.data.schema import Preference, read_id
from jaxalign.data.sources.source import Download, Source, field, objects

_REVISION = "1a515df9a84092e9370fa8594ac4252564e2136a"
_PARQUET = f"https://huggingface.co/datasets/openai/summarize_from_feedback/resolve/{_REVISION}/default/"

SOURCE = Source(
    name="tldr",
    title="OpenAI TL;DR comparisons",
    description="One row a comparison: the user is the worker, the group the post, labels as the workers gave them "
    "(some papers replace them by length). Comparisons of news articles (CNN/DM) are left out. valid1 and valid2 are "
    "'validation'. Summaries are kept to the letter, with the space that most begin with.",
    homepage="https://github.com/openai/summarize-from-feedback",
    licence="modified MIT (code and feedback); not for the Reddit posts, see https://zenodo.org/record/1168855",
    citation="""@inproceedings{stiennon2020learning,
  title = {Learning to summarize from human feedback},
  author = {Stiennon, Nisan and Ouyang, Long and Wu, Jeff and Ziegler, Daniel M. and Lowe, Ryan and Voss, Chelsea and
            Radford, Alec and Amodei, Dario and Christiano, Paul},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2020}
}""",
    layouts=(
        ("batch*.json",),
        ("comparisons/batch*.json",),
        ("summarize_from_feedback_comparisons-*.parquet",),
    ),
    downloads=(
        Download(
            name="summarize_from_feedback_comparisons-train.parquet",
            url=_PARQUET + "summarize_from_feedback_comparisons-train.parquet",
            sha256="dcac90c22798f317d3576b013f945575d23f5e06003adeedb872d1615aca6d63",
            size=21_115_501,
        ),
        Download(
            name="summarize_from_feedback_comparisons-validation.parquet",
            url=_PARQUET + "summarize_from_feedback_comparisons-validation.parquet",
            sha256="9991eceb6e044c677a8fbb4426dd778904a2f2a248a1599504c243f661fb6c31",
            size=22_831_889,
        ),
    ),
)
_SPLITS = {"train": "train", "valid1": "validation", "valid2": "validation", "validation": "validation"}


def prompt_for(subreddit: str, title: str, post: str) -> str:
    """The query format of the original work."""
    return f"SUBREDDIT: r/{subreddit}\n\nTITLE: {title}\n\nPOST: {post}\n\nTL;DR:"


def preferences(folder: Path) -> Iterator[Preference]:
    """The comparisons of a folder, in file order; `split` is "train" or "validation".

    Comparisons with an empty summary, which occur, are left out.

    Raises:
      DataError: the folder has not the files, or one breaks the official layout.
    """
    folder = Path(folder)
    (pattern,) = SOURCE.layouts[SOURCE.layout_of(folder)]
    for path in sorted(folder.glob(pattern)):
        # The Parquet copy keeps each official part in a file of its own.
        part = path.stem.rpartition("-")[2] if path.suffix == ".parquet" else None
        for line, row in objects(path):
            info = field(row, "info", path, line, dict)
            if not info.get("post"):
                continue
            summaries = field(row, "summaries", path, line, list)
            choice = field(row, "choice", path, line, int)
            if len(summaries) != 2 or choice not in (0, 1):
                mend = "A comparison has two summaries and a choice of 0 or 1."
                raise RowError("choice", f"is {choice} of {len(summaries)}", mend, source=path.name, line=line)
            texts = [clean(field(summary, "text", path, line)) for summary in summaries]
            if not all(text.strip() for text in texts):
                continue
            split = row.get("split") or part
            if split not in _SPLITS:
                mend = f"It is one of {', '.join(_SPLITS)}."
                raise RowError("split", f"is {split!r}", mend, source=path.name, line=line)
            post = [clean(field(info, name, path, line)) for name in ("subreddit", "title", "post")]
            yield Preference(
                user=read_id(field(row, "worker", path, line), "worker"),
                prompt=prompt_for(*post),
                chosen=texts[choice],
                rejected=texts[1 - choice],
                group=read_id(field(info, "id", path, line), "id"),
                label=0.5 if texts[0] == texts[1] else 1.0,
                split=_SPLITS[split],
            )

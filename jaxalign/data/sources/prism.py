"""PRISM: conversations in which people rated several models' replies, turn by turn."""

from collections.abc import Iterator
from pathlib import Path

from jaxalign.data.prompts import Message, clean
from jaxalign.data.schema import Preference, read_id
from jaxalign.data.sources.source import Download, Source, field, objects

_REVISION = "18ab5cfb37456f4ec8cbc00212ce54cf7b1239f6"

SOURCE = Source(
    name="prism",
    title="PRISM",
    description="One row for each reply that a person did not choose: chosen is the reply that they went on with, the "
    "prompt the conversation so far (their messages and the chosen replies), the group the conversation, the margin "
    "the difference of the two scores (1 to 100) over 100, at least 0. A turn in which nothing was chosen ends a "
    "conversation; a reply with the same text as the chosen one is no pair.",
    homepage=f"https://huggingface.co/datasets/HannahRoseKirk/prism-alignment/tree/{_REVISION}",
    licence="texts that people wrote: CC BY 4.0; replies of models: CC BY-NC 4.0 and the models' own terms",
    citation="""@inproceedings{kirk2024prism,
  title = {The {PRISM} Alignment Dataset: What Participatory, Representative and Individualised Human Feedback Reveals
           About the Subjective and Multicultural Alignment of Large Language Models},
  author = {Kirk, Hannah Rose and Whitefield, Alexander and R{\\"o}ttger, Paul and Bean, Andrew and Margatina, Katerina
            and Ciro, Juan and Mosquera, Rafael and Bartolo, Max and Williams, Adina and He, He and Vidgen, Bertie and
            Hale, Scott A.},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2024}
}""",
    layouts=(("conversations.jsonl",),),
    downloads=(
        Download(
            name="conversations.jsonl",
            url=f"https://huggingface.co/datasets/HannahRoseKirk/prism-alignment/resolve/{_REVISION}/conversations.jsonl",
            sha256="55ec67a194ca59d567b57acaeab813cb30abe801e73f9e495597a77ab674d638",
            size=60_331_783,
        ),
    ),
)


def preferences(folder: Path) -> Iterator[Preference]:
    """The pairs of a folder, in the order of conversations and turns.

    Raises:
      DataError: the folder has not `conversations.jsonl`, or it breaks the official layout.
    """
    folder = Path(folder)
    SOURCE.layout_of(folder)
    path = folder / "conversations.jsonl"
    for line, row in objects(path):
        user = read_id(field(row, "user_id", path, line), "user_id")
        conversation = read_id(field(row, "conversation_id", path, line), "conversation_id")
        turns: dict[int, list[dict]] = {}
        for entry in field(row, "conversation_history", path, line, list):
            turns.setdefault(field(entry, "turn", path, line, int), []).append(entry)
        history: list[Message] = []
        for turn in sorted(turns):
            asked = [entry for entry in turns[turn] if field(entry, "role", path, line) == "user"]
            replies = [entry for entry in turns[turn] if entry["role"] == "model"]
            chosen = next((reply for reply in replies if reply.get("if_chosen")), None)
            if len(asked) != 1 or chosen is None:
                break
            history.append(Message("user", clean(field(asked[0], "content", path, line))))
            best = clean(field(chosen, "content", path, line))
            for reply in replies:
                other = clean(field(reply, "content", path, line))
                if other != best and other.strip() and best.strip():
                    yield Preference(
                        user=user,
                        prompt=tuple(history),
                        chosen=best,
                        rejected=other,
                        group=conversation,
                        margin=max(0.0, (_score(chosen) - _score(reply)) / 100),
                    )
            history.append(Message("assistant", best))


def _score(reply: dict) -> float:
    score = reply.get("score")
    return float(score) if isinstance(score, int | float) else 0.0

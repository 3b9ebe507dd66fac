"""In-context learning: a language model that has read some of the user's texts before the request.

The baseline that needs no reward model. Demonstrations are earlier turns of the same conversation (the prompt from the
user, the text from the assistant), so the chat template renders them, and the result is a prompt like any other one:
for generation, for log-probabilities of responses, and for guided decoding on top.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from jaxalign.data.demonstrations import Row, Select, demonstrations
from jaxalign.data.prompts import Prompt
from jaxalign.data.schema import Completion, Preference
from jaxalign.errors import InputError
from jaxalign.evaluation.graded import TOP, GradesOfReward, Reward, grades_of_label, instruction
from jaxalign.models.tokenizer import Message, Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class InContext:
    """One way to show a user's texts in context.

    Attributes:
      select: `random`, `recent` or `bm25`; see `jaxalign.data.demonstrations`.
      count: rows of the history to show. A row of own texts is one text; a preference is its preferred text, or with
        `graded` both texts.
      budget: most tokens that demonstrations may add to the prompt.
      graded: texts carry the user's grade, and the request asks for the top grade (reward-conditioned prompting).
      of_others: other users' texts: the control that tells what is due to the user, and what to any examples at all.
      seed: of `random`, and of ties.
      name: in tables of results; made from the other fields where it is left out.
    """

    select: Select = "bm25"
    count: int = 4
    budget: int = 1024
    graded: bool = False
    of_others: bool = False
    seed: int = 0
    name: str = ""

    def __post_init__(self):
        if self.count < 0 or self.budget < 0:
            raise InputError(f"count is {self.count} and budget is {self.budget}; both are at least 0.")
        if not self.name:
            parts = ["graded" if self.graded else "in_context", *(["others"] if self.of_others else [])]
            object.__setattr__(self, "name", "_".join([*parts, self.select, str(self.count)]))


@dataclasses.dataclass(frozen=True)
class Context:
    """A prompt with demonstrations.

    Attributes:
      messages: the conversation, which ends with the request. Without demonstrations and grades it renders to the same
        ids as the prompt alone.
      shown: demonstrations in it, in rows of the history.
      dropped: demonstrations that were selected and did not fit in the budget.
    """

    messages: list[Message]
    shown: int
    dropped: int


def contexts(
    targets: Sequence[Preference | Completion],
    history: Sequence[Row],
    spec: InContext,
    tokenizer: Tokenizer | None,
    reward: Reward | None = None,
) -> list[Context]:
    """The prompt of each target, after demonstrations from the history; the most relevant one is next to the request.

    A demonstration that is longer than the budget is left out; of the others the least relevant are, until the rest
    fits. Nothing takes their place, so compare `shown`.

    Args:
      targets: what is to be generated, or judged by log-probability.
      history: the users' own texts, or preferences, in the order of the file for `select="recent"`.
      spec: which rows, how many, and how.
      tokenizer: of the language model; it must have a chat template.
      reward: with `graded`, gives the grades; without it the labels of preferences do.

    Raises:
      InputError: no chat template, a template that refuses the conversation, own texts to be graded without `reward`,
        or a reward that is not finite.
    """
    if tokenizer is None or not tokenizer.has_template:
        raise InputError(f"{spec.name} needs a model with a chat template: demonstrations are turns of a conversation")
    render = _renderer(history, spec, reward)
    rows = demonstrations(targets, history, spec.count, select=spec.select, of_others=spec.of_others, seed=spec.seed)
    fit = _Budget(spec.budget, tokenizer)
    made = []
    for target, own in zip(targets, rows, strict=True):
        request = _turn(target.prompt, TOP if spec.graded else None)
        turns = fit([render(row) for row in own], request)
        made.append(Context(_joined(turns, request), len(turns), len(own) - len(turns)))
    return made


def _renderer(
    history: Sequence[Row], spec: InContext, reward: Reward | None
) -> Callable[[Preference | Completion], list[Message]]:
    """From a row of the history to its turns."""
    if not spec.graded:
        return lambda row: _exchange(row.prompt, None, preferred(row))
    if reward is not None:
        graded: Callable[..., list[tuple[str, int]]] = GradesOfReward(history, reward)
    elif any(isinstance(row, Completion) for row in history):
        raise InputError(
            f"{spec.name}: own texts have no grades: give 'reward', or preferences, whose labels are grades"
        )
    else:
        graded = grades_of_label

    def turns(row: Preference | Completion) -> list[Message]:
        # By grade, and by text where the grades are equal: not by which of the two is the chosen one.
        pieces = sorted(graded(row), key=lambda piece: (piece[1], piece[0]))
        return [message for text, grade in pieces for message in _exchange(row.prompt, grade, text)]

    return turns


def preferred(row: Preference | Completion) -> str:
    """The text that the user wrote, or found the better one."""
    if isinstance(row, Completion):
        return row.completion
    return row.chosen if row.label > 0.5 else row.rejected


def _turn(prompt: Prompt, grade: int | None) -> list[Message]:
    """A prompt as messages, with the grade that its response should have."""
    if isinstance(prompt, str):
        messages = [{"role": "user", "content": prompt}]
    else:
        messages = [{"role": message.role, "content": message.content} for message in prompt]
    if grade is None:
        return messages
    if messages and messages[-1]["role"] == "user":
        *messages, last = messages
        asked = f"{last['content']}\n\n{instruction(grade)}".lstrip()
    else:
        asked = instruction(grade)
    return [*messages, {"role": "user", "content": asked}]


def _exchange(prompt: Prompt, grade: int | None, text: str) -> list[Message]:
    # Templates want a system message first or not at all, and the request's own is the one that holds.
    turn = [message for message in _turn(prompt, grade) if message["role"] != "system"]
    return [*turn, {"role": "assistant", "content": text}]


def _joined(demonstrations: Sequence[Sequence[Message]], request: Sequence[Message]) -> list[Message]:
    start = 0
    while start < len(request) and request[start]["role"] == "system":
        start += 1
    return [*request[:start], *(message for turns in demonstrations for message in turns), *request[start:]]


_PROBE = {"role": "user", "content": "a"}  # some request, always the same: a cost depends on no other row


class _Budget:
    """Drops demonstrations until the tokens that they add to a request are within the budget."""

    def __init__(self, budget: int, tokenizer: Tokenizer):
        self._budget = budget
        # Rows are shown before many requests, and users share prompts.
        self._counted = functools.lru_cache(maxsize=1 << 14)(
            lambda turns: len(tokenizer.chat([{"role": role, "content": content} for role, content in turns]))
        )

    def __call__(self, demonstrations: Sequence[list[Message]], request: list[Message]) -> list[list[Message]]:
        if not demonstrations:
            return []
        kept, room = [], self._budget
        for turns in reversed(demonstrations):
            cost = self._tokens([*turns, _PROBE]) - self._tokens([_PROBE])
            if cost > self._budget:
                continue
            room -= cost
            if room < 0:
                break
            kept.insert(0, turns)
        # Exact, also for templates whose turns do not add up.
        while kept and self._tokens(_joined(kept, request)) - self._tokens(request) > self._budget:
            del kept[0]
        return kept

    def _tokens(self, messages: Sequence[Message]) -> int:
        return self._counted(tuple((message["role"], message["content"]) for message in messages))

"""Prompts: strings or chat messages, and how to find them where chosen and rejected hold the whole dialogue.

Published preference files often have no prompt of their own: both responses repeat the conversation, and the prompt is
what they share (the implicit-prompt form). It must end where a turn ends: a common prefix of characters would cut
words, and special markers such as `<|im_start|>`, in half.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxalign.data.row_error import RowError


class Message(NamedTuple):
    """One turn of a conversation. Roles are those of the chat template: "system", "user", "assistant"."""

    role: str
    content: str


Prompt = str | tuple[Message, ...]

# Half of a UTF-16 surrogate pair: legal in JSON escapes, impossible in UTF-8, so it would fail when first written.
_SURROGATE = re.compile("[\ud800-\udfff]")
REPLACEMENT = "\ufffd"

# Where the assistant's turn begins in dialogues written as one string; the response is what follows.
_ASSISTANT_TURN = re.compile(
    r"\n\nAssistant:"
    r"|<\|im_start\|>assistant\n"
    r"|<\|start_header_id\|>assistant<\|end_header_id\|>\n\n"
    r"|<\|assistant\|>\n"
    r"|<start_of_turn>model\n"
    r"|\[/INST\]"
)


def clean(text: str) -> str:
    """`text` with halves of surrogate pairs replaced by U+FFFD, so that it can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(REPLACEMENT, text)
    return text


def prompt_text(prompt: Prompt) -> str:
    """One string that identifies a prompt, for hashing and for nearest-prompt search; not a chat template."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"{message.role}: {message.content}" for message in prompt)


def identity(prompt: Prompt) -> str:
    """A string that differs for different prompts (also for a string and messages with the same text)."""
    if isinstance(prompt, str):
        return "s" + prompt
    parts = [part for message in prompt for part in (message.role, message.content)]
    return "m" + "".join(f"{len(part)}:{part}" for part in parts)


def read_messages(value: Any, field: str) -> tuple[Message, ...]:
    """Checks a list of `{"role": ..., "content": ...}` objects.

    Raises:
      RowError: it is no such list.
    """
    form = 'Write [{"role": "user", "content": "..."}, ...] or a string.'
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise RowError(field, "is neither text nor a list of messages", form)
    if not value:
        raise RowError(field, "is an empty list", form)
    messages = []
    for place, message in enumerate(value, start=1):
        if not isinstance(message, Mapping):
            raise RowError(field, f"has no object as message {place}", form)
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role or not isinstance(content, str):
            raise RowError(field, f"lacks a text 'role' or 'content' in message {place}", form)
        messages.append(Message(clean(role), clean(content)))
    return tuple(messages)


def split_texts(chosen: str, rejected: str) -> tuple[str, str, str]:
    """The implicit prompt of two strings: what they share up to the last common start of an assistant's turn.

    Without a turn marker there is no prompt, however many characters the two have in common.

    Returns:
      prompt, chosen and rejected; their concatenations are the two inputs.
    """
    shared = _shared_characters(chosen, rejected)
    cut = 0
    # Matching within the shared characters alone: a marker that the two texts do not both complete is not there.
    for marker in _ASSISTANT_TURN.finditer(chosen, 0, shared):
        cut = marker.end()
    return chosen[:cut], chosen[cut:], rejected[cut:]


def _shared_characters(one: str, other: str) -> int:
    """The length of the longest common prefix, by bisection."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def split_dialogue(
    prompt: Prompt | None, chosen: tuple[Message, ...], rejected: tuple[Message, ...]
) -> tuple[Prompt, str, str]:
    """Prompt and two responses from message lists, which may repeat the prompt.

    Args:
      prompt: the row's own prompt, or None: then it is the messages that both begin with. Each list keeps its last
        message as the response, so identical lists and lists that continue each other have a response too.
      chosen: one message, or the whole conversation.
      rejected: as `chosen`.

    Raises:
      RowError: the lists differ in more than the last message, or do not begin with the prompt.
    """
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    for field, messages in (("chosen", chosen), ("rejected", rejected)):
        if len(messages) - shared != 1:
            raise RowError(
                field,
                f"has {len(messages) - shared} messages that the other response does not share",
                "The two may differ in their last message only: end both conversations there.",
            )
    context = chosen[:shared]
    if isinstance(prompt, str):
        if context and context[-1].content != prompt:
            raise RowError("prompt", "is not the last message before the responses", "Leave 'prompt' out of the row.")
        found: Prompt = context or prompt
    elif prompt is not None:
        if context and context != prompt:
            raise RowError("prompt", "and the messages before the responses differ", "Leave 'prompt' out of the row.")
        found = prompt
    else:
        found = context
    if not found and prompt is None:
        found = ""
    return found, chosen[-1].content, rejected[-1].content

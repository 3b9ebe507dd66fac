"""Ids of conversations in the styles of eleven published model families, against the tokenizer library's own rendering.

The templates are written for these tests in the published layouts. 100 conversations are made in each
style, and 2,500 where slow tests are asked for.
"""

import functools

import numpy as np
import pytest
from test_tokenizer import STYLES as TOKENIZERS
from test_tokenizer import build, library_chat

from jaxalign.models.tokenizer import Tokenizer

# Model for assistant, the system's words in the first turn, all trimmed.
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] | trim + '\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for m in turns %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') }}{{ m['content'] | trim }}"
    "{{ '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
# Markers of roles that are plain text in the vocabulary.
ZEPHYR = (
    "{% for m in messages %}\n{% if m['role'] == 'user' %}\n{{ '<|user|>\n' + m['content'] + eos_token }}\n"
    "{% elif m['role'] == 'system' %}\n{{ '<|system|>\n' + m['content'] + eos_token }}\n"
    "{% else %}\n{{ '<|assistant|>\n' + m['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
VICUNA = (
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + ' ' }}{% set turns = messages[1:] %}"
    "{% else %}{{ 'A chat. ' }}{% set turns = messages %}{% endif %}{% for m in turns %}"
    "{% if m['role'] == 'user' %}{{ 'USER: ' + m['content'].strip() + ' ' }}"
    "{% else %}{{ 'ASSISTANT: ' + m['content'].strip() + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
ALPACA = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] + '\n\n' }}"
    "{% elif m['role'] == 'user' %}{{ '### Instruction:\n' + m['content'] + '\n\n' }}"
    "{% else %}{{ '### Response:\n' + m['content'] + eos_token + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
# Roles by a filter, whitespace cut by the template's own signs, a macro.
COMMAND = (
    "{%- macro turn(role, text) -%}<|turn|><|{{ role | upper }}|>{{ text }}<|end_of_turn|>{%- endmacro -%}"
    "{{ bos_token }}{%- for m in messages -%}"
    "{{ turn('chatbot' if m['role'] == 'assistant' else m['role'], m['content']) }}"
    "{%- endfor -%}{%- if add_generation_prompt -%}<|turn|><|CHATBOT|>{%- endif -%}"
)
# A default system turn where there is none, and a namespace that counts.
QWEN = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{{ '<|im_start|>' + m['role'] + '\n' }}{{ m['content'] }}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ 'User: ' + m['content'] + '\n\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ 'Assistant: ' + m['content'] + eos_token }}"
    "{% else %}{{ m['content'] + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)

IM = ["<|end|>", "<|im_start|>", "<|im_end|>"]
STYLES = {
    **{name: TOKENIZERS[name] for name in ("chatml", "llama3", "mistral")},
    "qwen": {"special": IM, "template": QWEN, "eos": "<|im_end|>"},
    "gemma": {
        "special": ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
        "template": GEMMA,
        "bos": "<bos>",
        "eos": "<eos>",
        "adds_bos": True,
        "metaspace": True,
    },
    "phi": {
        "special": ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
        "template": PHI,
        "eos": "<|endoftext|>",
    },
    "zephyr": {"special": ["<s>", "</s>"], "template": ZEPHYR, "bos": "<s>", "eos": "</s>", "metaspace": True},
    "vicuna": {"special": ["<s>", "</s>"], "template": VICUNA, "eos": "</s>", "metaspace": True},
    "alpaca": {"special": ["<|end|>"], "template": ALPACA, "eos": "<|end|>"},
    "command": {
        "special": ["<BOS>", "<|end_of_turn|>", "<|turn|>", "<|USER|>", "<|CHATBOT|>", "<|SYSTEM|>"],
        "template": COMMAND,
        "bos": "<BOS>",
        "eos": "<|end_of_turn|>",
        "adds_bos": True,
    },
    "deepseek": {"special": ["<begin>", "<end>"], "template": DEEPSEEK, "bos": "<begin>", "eos": "<end>"},
}
PIECES = [
    "the quick brown fox",
    "a bakery",
    "12,500",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "na\xefve",
    "\u6f22\u5b57",
    "\U0001f950",
    "e\u0301",
    "\xdf",
    "\u03a9",
    "<b>",
    "</p>",
    "> ",
    "[x]",
    "{y}",
    "'",
    '"',
    "\\",
    "# ",
    "- ",
    "* ",
    "@",
    "USER",
    "User:",
    "### ",
    "<",
    "|>",
    " a",
    "I'm",
    "...",
    "?",
    "!",
    "\u200b",
    "\u2028",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\xa0",
    "_",
    "0",
    "x = {{ y }}",
    "{% if %}",
]


@functools.cache
def readers(name, root):
    """Our tokenizer of a style and the library's."""
    from transformers import AutoTokenizer

    folder = root / name
    folder.mkdir()
    build(folder, **STYLES[name])
    return Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("styles")


def conversation(rng, system):
    """Turns of random pieces; the last one is the user's, half of the conversations begin with a system's turn."""

    def text():
        joined = "".join(rng.choice(PIECES, rng.integers(1, 9)))
        return joined if joined.strip() else joined + "word"

    turns = 2 * int(rng.integers(0, 3)) + 1
    messages = [{"role": ("user", "assistant")[i % 2], "content": text()} for i in range(turns)]
    return [{"role": "system", "content": text()}, *messages] if system and rng.random() < 0.5 else messages


@pytest.mark.parametrize("conversations", [100, pytest.param(2500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STYLES)
def test_ids_are_those_of_the_library_s_own_rendering(name, conversations, root):
    ours, library = readers(name, root)
    rng = np.random.default_rng(0)
    seen = set()
    for number in range(conversations):
        # This template refuses a system's turn, as the published ones do.
        messages = conversation(rng, system=name != "mistral")
        ask = number % 4 != 0
        ids = ours.chat(messages, add_generation_prompt=ask)
        assert ids == library_chat(library, messages, ask), messages
        seen.add(tuple(ids))
    # Nearly all of them differ.
    assert len(seen) > 0.9 * conversations

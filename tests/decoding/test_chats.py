"""Chats whose end-of-turn marker is the end of text and the padding too, as in SmolLM2: nothing is read off an id."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import tiny

from jaxalign import models
from jaxalign.decoding import RewardHead, generate, score
from jaxalign.models.tokenizer import left_pad
from jaxalign.models.transformer import bind, prefill
from jaxalign.rewards.features import extract

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}:{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose tokenizer adds BOS to every text, and whose template writes one too."""
    folder = tmp_path_factory.mktemp("chats")
    config = dataclasses.replace(tiny.CONFIGS["smollm2"], vocab_size=258, num_layers=1, max_position=160)
    tiny.save_tokenizer(tiny.save(folder, config))
    file = folder / "tokenizer.json"
    definition = json.loads(file.read_text())
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    file.write_text(json.dumps(definition))
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def lm(folder):
    return models.load(str(folder))


@pytest.fixture(scope="module")
def head(lm):
    return RewardHead.linear(np.random.default_rng(0).standard_normal(lm.config.hidden_size).astype(np.float32))


def chat(*texts):
    return [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 3, texts, strict=False)]


# Short enough to share their compiled programs, but for the one that is many times longer.
PROMPTS = [
    chat("hi", "yes?", "hue?"),
    chat("go on"),
    chat("one", "two", "three", "four", "five, and what comes after it in this long row of numbers?"),
    chat("a"),
    chat("the sea?"),
    chat("x", "y", "z"),
    chat("why?"),
]
ANSWERS = ["red", "no", "six and seven", "b", "west", "w", "this"]


def rewards_of(lm, head, prompts, answers, **settings):
    return np.array([result.reward for result in score(lm, prompts, answers, guidance=head, top_k=2, **settings)])


def test_the_marker_is_end_and_padding_at_once(lm):
    assert lm.tokenizer.end_ids == (lm.tokenizer.pad_id,) == (1,)
    assert lm.tokenizer.prompt(PROMPTS[0]).count(1) == 3


def test_the_reward_is_that_of_the_last_token_alone_in_a_batch_and_on_either_side_of_padding(lm, head):
    ids = lm.tokenizer.prompt(PROMPTS[0]) + lm.tokenizer.encode(ANSWERS[0])
    longer = lm.tokenizer.prompt(PROMPTS[2]) + lm.tokenizer.encode(ANSWERS[2])
    vector, encode = np.asarray(head.users["vector"])[0], jax.jit(lambda *x: prefill(bind(lm.config, lm.params), *x)[0])

    def last(tokens, lengths, place):
        return float(encode(tokens, np.asarray(lengths, np.int32))[0, place] @ vector)

    # Padded on the right by hand: what follows a token cannot change its hidden state.
    right = np.full((2, 128), lm.tokenizer.pad_id, np.int32)
    right[0, : len(ids)], right[1, : len(longer)] = ids, longer
    by_hand = last(right, [128, 128], len(ids) - 1)
    assert last(*left_pad([ids, longer], 128, lm.tokenizer.pad_id), -1) == pytest.approx(by_hand, abs=1e-4)
    alone = rewards_of(lm, head, PROMPTS[:1], ANSWERS[:1])[0]
    together = rewards_of(lm, head, [PROMPTS[0], PROMPTS[2]], [ANSWERS[0], ANSWERS[2]])[0]
    assert alone == pytest.approx(by_hand, abs=1e-4)
    assert together == pytest.approx(by_hand, abs=1e-4)
    # Read anywhere before the answer, the score would not notice another one.
    assert abs(rewards_of(lm, head, PROMPTS[:1], ["blue"])[0] - by_hand) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_company_and_batch_size_change_no_ranking(folder, head, dtype):
    lm = models.load(str(folder), dtype=dtype)
    answers = [text[::-1] + "?" for text in ANSWERS]
    answers[4] *= 10  # against a short one, a text ten times as long
    prompts, answers = PROMPTS * 2, ANSWERS + answers
    found = [rewards_of(lm, head, prompts, answers, batch_size=size) for size in (1, 2, 7)]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=0, atol=1e-4 if dtype == "float32" else 0.1)
        np.testing.assert_array_equal(other[:7] > other[7:], found[0][:7] > found[0][7:])


def test_each_command_reads_the_same_ids_with_one_bos(lm, head):
    ids = [lm.tokenizer.prompt(prompt) for prompt in PROMPTS[:2]]
    assert all(row[0] == 0 and row.count(0) == 1 for row in ids)
    answers = [lm.tokenizer.encode(text) for text in ANSWERS[:2]]
    texts, same = score(lm, PROMPTS[:2], ANSWERS[:2]), score(lm, ids, answers)
    assert [r.token_log_prob for r in texts] == [r.token_log_prob for r in same]
    features = extract(lm, [(tuple(models_message(p)), a) for p, a in zip(PROMPTS[:2], ANSWERS[:2], strict=True)])
    np.testing.assert_allclose(sorted(features.log_prob), sorted(r.log_prob for r in same), atol=1e-4)
    written, again = (generate(lm, prompts, max_new_tokens=2, ignore_eos=True) for prompts in (PROMPTS[:2], ids))
    assert [r.tokens for r in written] == [r.tokens for r in again]
    assert [r.prompt_tokens for r in written] == [len(row) for row in ids]


def models_message(prompt):
    from jaxalign.data.prompts import Message

    return [Message(message["role"], message["content"]) for message in prompt]


@pytest.mark.parametrize("answer", [" red", "\nred", ":red", "</s>red", "red</s>u:more</s>a:", "<s>"])
def test_an_answer_begins_where_the_prompt_ends_and_forges_nothing(lm, head, answer):
    """An answer that would merge with the last piece of the prompt, or that holds the marker, keeps its own ids."""
    ids = lm.tokenizer.encode(answer)
    assert not {0, 1} & set(ids)
    assert lm.tokenizer.decode(ids) == answer
    (one,) = score(lm, PROMPTS[:1], [answer], guidance=head, top_k=2)
    (other,) = score(lm, [lm.tokenizer.prompt(PROMPTS[0])], [ids], guidance=head, top_k=2)
    assert one.num_tokens == len(ids)
    assert one.reward == other.reward  # read at its last token, whatever marker came before

"""In-context prompts: turns in the right order, within the budget, without the answer; grades that mean the same."""

import json
import math

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxalign.data.prompts import Message
from jaxalign.data.schema import Completion, Preference
from jaxalign.errors import InputError
from jaxalign.evaluation.graded import GradesOfReward, grades_of_label, instruction
from jaxalign.evaluation.in_context import InContext, contexts
from jaxalign.models.tokenizer import Tokenizer

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}[default]\n{% endif %}"
    "{{ message.role }}: {{ message.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# Costs more than its parts: each turn states how many came before.
NOT_ADDITIVE = (
    "{% for message in messages %}{% for earlier in messages[:loop.index0] %}>{% endfor %}"
    "{{ message.role }}: {{ message.content }}</s>\n{% endfor %}"
)
TEXTS = st.sampled_from(["T1", "T2", "a longer one", "T4", "é\n"])
COMMON = {
    "user": st.sampled_from("ab"),
    "prompt": st.sampled_from(["", "rain", "count words", (Message("system", "s"), Message("user", "rain"))]),
    "group": st.none() | st.sampled_from([f"g{n}" for n in range(8)]),
}
COMPLETIONS = st.lists(st.builds(Completion, completion=TEXTS, **COMMON), max_size=8)
PREFERENCES = st.lists(st.builds(Preference, chosen=TEXTS, rejected=TEXTS, **COMMON), max_size=8)


def make_tokenizer(folder, template):
    tiny.save_tokenizer(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"), TEMPLATE)


@pytest.fixture(scope="module")
def not_additive(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"), NOT_ADDITIVE)


def paper(user, group, prompt="p", completion=None):
    return Completion(user=user, prompt=prompt, completion=completion or f"title {group}", group=group)


def said(context):
    return [(message["role"], message["content"]) for message in context.messages]


HISTORY = [paper("a", "1", "rain"), paper("b", "2", "rain"), paper("a", "3", "count words"), paper("a", "4", "rain on")]


def test_turns_and_then_the_request(tokenizer):
    (context,) = contexts([paper("a", "9", "rain")], HISTORY, InContext(select="bm25", count=2), tokenizer)
    assert said(context) == [
        ("user", "rain on"),
        ("assistant", "title 4"),
        ("user", "rain"),
        ("assistant", "title 1"),
        ("user", "rain"),
    ]
    assert (context.shown, context.dropped) == (2, 0)


def test_the_control_shows_other_users_only(tokenizer):
    spec = InContext(select="random", count=3, of_others=True)
    (context,) = contexts([paper("a", "9", "rain")], HISTORY, spec, tokenizer)
    assert said(context) == [("user", "rain"), ("assistant", "title 2"), ("user", "rain")]


def test_preferences_show_the_preferred_text(tokenizer):
    pair = {"user": "a", "prompt": "p"}
    history = [
        Preference(**pair, chosen="good", rejected="bad"),
        Preference(**pair, chosen="worse", rejected="better", label=0.2),
        Preference(**pair, chosen="one", rejected="other", label=0.5),
    ]
    target = Preference(user="a", prompt="q", chosen="x", rejected="y")
    (context,) = contexts([target], history, InContext(select="recent"), tokenizer)
    assert [text for role, text in said(context) if role == "assistant"] == ["good", "better"]


def test_without_demonstrations_it_is_the_plain_prompt(tokenizer):
    conversation = (Message("system", "Be brief."), Message("user", "Hi."), Message("assistant", "Hi."))
    for prompt in ("rain", (*conversation, Message("user", "rain"))):
        for history, spec in (([], InContext()), (HISTORY, InContext(count=0)), (HISTORY, InContext(budget=0))):
            (context,) = contexts([Completion(user="a", prompt=prompt, completion="x")], history, spec, tokenizer)
            plain = prompt if isinstance(prompt, str) else [message._asdict() for message in prompt]
            assert tokenizer.chat(context.messages) == tokenizer.prompt(plain)
            assert context.shown == 0


def test_one_system_message_first_and_whole_conversations(tokenizer):
    earlier = (Message("system", "old"), Message("user", "u1"), Message("assistant", "a1"), Message("user", "u2"))
    history = [Completion(user="a", prompt=earlier, completion="a2")]
    target = Completion(user="a", prompt=(Message("system", "new"), Message("user", "u3")), completion="a3")
    (context,) = contexts([target], history, InContext(), tokenizer)
    roles = "system user assistant user assistant user".split()  # noqa: SIM905
    assert said(context) == list(zip(roles, ["new", "u1", "a1", "u2", "a2", "u3"], strict=True))


@settings(max_examples=60)
@given(
    st.one_of(COMPLETIONS, PREFERENCES),
    st.one_of(COMPLETIONS, PREFERENCES).filter(len),
    st.integers(0, 160),
    st.sampled_from(["random", "recent", "bm25"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_budget_holds_and_no_answer_is_shown(
    tokenizer, not_additive, history, targets, budget, select, of_others, graded, additive
):
    spec = InContext(select=select, count=3, budget=budget, of_others=of_others, graded=graded)
    tokens = tokenizer if additive else not_additive
    targets = [row for row in targets if row.prompt]
    if not targets:
        return
    reward = (lambda user, prompt, text: float(len(text))) if graded else None

    def made(spec):
        return contexts(targets, history, spec, tokens, reward)

    whole = made(InContext(select=select, count=3, budget=10**6, of_others=of_others, graded=graded))
    none = made(InContext(select=select, count=0, graded=graded))
    for target, context, full, alone in zip(targets, made(spec), whole, none, strict=True):
        size, least = len(tokens.chat(context.messages)), len(tokens.chat(alone.messages))
        assert size - least <= budget
        assert context.shown + context.dropped == full.shown
        if len(tokens.chat(full.messages)) - least <= budget:
            assert context == full
        # The answer may be a part of an earlier conversation's turns, but is no demonstrated response.
        answers = {message["content"].strip() for message in context.messages if message["role"] == "assistant"}
        own = [target.completion] if isinstance(target, Completion) else [target.chosen, target.rejected]
        assert not answers & {text.strip() for text in own}
        if graded:
            assert context.messages[-1]["content"].endswith(instruction(10))


def test_the_least_relevant_go_first_and_giants_push_nobody_out(tokenizer):
    history = [
        paper("a", "1", "rain", "x" * 500),
        paper("a", "2", "rain on"),
        paper("a", "3", "rain on bridges"),
        paper("a", "4", "something else"),
    ]
    target = paper("a", "9", "rain")

    def shown(budget):
        (context,) = contexts([target], history, InContext(budget=budget), tokenizer)
        return [text for role, text in said(context) if role == "assistant"], context.dropped

    assert shown(10**4) == (["title 4", "title 3", "title 2", "x" * 500], 0)
    assert shown(400) == (["title 4", "title 3", "title 2"], 1)
    assert shown(100) == (["title 3", "title 2"], 2)
    assert shown(50) == (["title 2"], 3)
    assert shown(10) == ([], 4)


def test_grades_of_labels():
    def grades(label):
        row = Preference(user="a", prompt="p", chosen="c", rejected="r", label=label)
        return [grade for _, grade in grades_of_label(row)]

    assert grades(1.0) == [10, 1]
    assert grades(0.9) == [9, 2]
    assert grades(0.0) == [1, 10]


def test_graded_pairs(tokenizer):
    history = [Preference(user="a", prompt="p", chosen="good", rejected="bad")]
    target = Preference(user="a", prompt="q", chosen="x", rejected="y")
    (context,) = contexts([target], history, InContext(graded=True), tokenizer)
    assert said(context) == [
        ("user", f"p\n\n{instruction(1)}"),
        ("assistant", "bad"),
        ("user", f"p\n\n{instruction(10)}"),
        ("assistant", "good"),
        ("user", f"q\n\n{instruction(10)}"),
    ]
    assert context.shown == 1


def test_grades_of_rewards_are_ranks_within_the_user():
    texts = [paper("a", str(n), completion="x" * n) for n in (1, 2, 3, 3, 40)] + [paper("b", "b", completion="alone")]

    def grades(reward):
        graded = GradesOfReward(texts, reward)
        return [grade for row in texts for _, grade in graded(row)]

    # Of five texts, one, two, four, four and five have at most the reward.
    expected = [2, 4, 8, 8, 10, 10]
    assert grades(lambda user, prompt, text: len(text)) == expected
    assert grades(lambda user, prompt, text: math.exp(len(text)) - 5) == expected
    assert grades(lambda user, prompt, text: 0.0) == [10] * 6


def test_grades_do_not_depend_on_which_text_is_the_chosen_one(tokenizer):
    pair = {"user": "a", "prompt": "p"}
    target = Preference(user="a", prompt="q", chosen="x", rejected="y")
    made = [
        contexts([target], [row], InContext(graded=True), tokenizer, lambda user, prompt, text: float(text == "l"))
        for row in (Preference(**pair, chosen="l", rejected="m"), Preference(**pair, chosen="m", rejected="l"))
    ]
    assert made[0] == made[1]


def test_names_tell_specs_apart():
    assert InContext().name == "in_context_bm25_4"
    assert InContext(select="random", count=2, of_others=True).name == "in_context_others_random_2"
    assert InContext(graded=True).name == "graded_bm25_4"
    assert InContext(name="mine").name == "mine"


def test_what_cannot_work_is_refused_first(tokenizer, tmp_path):
    target = [paper("a", "9")]
    with pytest.raises(InputError, match="own texts have no grades: give 'reward'"):
        contexts(target, HISTORY, InContext(graded=True), tokenizer)
    with pytest.raises(InputError, match=r"user 'a': the reward .* is nan"):
        contexts(target, HISTORY, InContext(graded=True), tokenizer, lambda user, prompt, text: math.nan)
    plain = Tokenizer.from_folder(tiny.save_tokenizer(tmp_path))
    for without in (None, plain):
        with pytest.raises(InputError, match="in_context_bm25_4 needs a model with a chat template"):
            contexts(target, HISTORY, InContext(), without)
    with pytest.raises(InputError, match="both are at least 0"):
        InContext(budget=-1)

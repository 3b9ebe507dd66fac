"""`jaxalign score FILE`: rewards of pairs under every kind of saved model, row by row, and what is refused."""

import json

import jax
import numpy as np
import pytest
import tiny

from jaxalign import cli, files, models, rewards
from jaxalign.data.schema import Preference, as_row
from jaxalign.errors import InputError
from jaxalign.rewards import export, tuning
from jaxalign.rewards.features import Pooling, extract, pair_blocks
from jaxalign.rewards.pair_scores import PairScore, score_pairs, summarise
from jaxalign.rewards.pairs import statistics, to_device
from jaxalign.rewards.protocol import RewardModel
from jaxalign.rewards.scoring import pair_rewards
from jaxalign.rewards.tuning import TunedModel
from jaxalign.rewards.tuning import export as tuned

pytestmark = pytest.mark.usefixtures("quick_compilation")

CONFIG = tiny._config("llama", vocab_size=258, hidden_size=16, num_heads=2, num_kv_heads=1, head_dim=8, max_position=64)
WORDS = ("red", "blue", "a longer answer", "no", "yes indeed")
ROWS = [
    Preference(
        user=("ann", "bob", "cy")[n % 3],
        prompt=f"Q{n % 2}",
        chosen=WORDS[n % 5],
        rejected=WORDS[(n + 1 + n % 3) % 5],
        label=(1.0, 1.0, 0.2, 0.5)[n % 4],
    )
    for n in range(14)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    return tiny.save_tokenizer(tiny.save(folder, CONFIG, bos_token_id=0, eos_token_id=1))


@pytest.fixture(scope="module")
def lm(folder):
    return models.load(str(folder), layers="scanned")  # one compiled body


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    monkeypatch.setenv(files.CACHE_VARIABLE, str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def features(lm):
    return extract(lm, [(row.prompt, text) for row in ROWS for text in (row.chosen, row.rejected)])


def drawn(name, lm, features, pooling: Pooling = "last"):
    """A reward model of `ROWS`' users as `fit` would give it, with random numbers instead of fitted ones."""
    blocks = pair_blocks(ROWS, features, pooling)
    method = rewards.make(name, **({"components": 4} if name == "drm" else {}))
    described = statistics(blocks)
    pairs = to_device(blocks, described)
    params, users = method.init(jax.random.key(0), pairs, method.prepare(blocks, pairs))
    users = method.adapt(params, pairs) if method.amortised else users
    draw = np.random.default_rng(0)

    def noisy(leaf):
        return (np.asarray(leaf) + 0.3 * draw.standard_normal(np.shape(leaf))).astype(np.float32)

    shared = {"params": jax.tree.map(noisy, params), "statistics": described, "margin_deviation": np.float32(2.0)}
    return RewardModel(
        method=method,
        shared=shared,
        user_params=users if method.amortised else jax.tree.map(noisy, users),
        users=blocks.users,
        backbone=lm.fingerprint,
    ), blocks


def tuned_model(name, lm, users=("ann", "bob", "cy")):
    method = tuning.make(name)
    counts = np.full(len(users), 4)
    head, personal = method.init(jax.random.key(1), lm.config, lm.params, counts)
    return TunedModel(
        method=method,
        backbone=tuning.Frozen(),
        config=lm.config,
        variables={"backbone": {}, "head": head, "users": personal},
        users=users if method.personal else (),
        fitted_for=lm.fingerprint,
    )


def check(name, lm, features):
    model, blocks = drawn(name, lm, features)
    scores = list(score_pairs(model, lm, ROWS))
    assert [score.user for score in scores] == [row.user for row in ROWS]
    together = pair_rewards(model, blocks)
    for number, score in enumerate(scores):
        row = ROWS[number]
        user = blocks.users.index(row.user)
        one, two = features.of(row.prompt, row.chosen), features.of(row.prompt, row.rejected)
        (place,) = np.flatnonzero((blocks.chosen[user] == one) & (blocks.rejected[user] == two) & blocks.mask[user])[:1]
        assert score.reward_chosen == pytest.approx(together.chosen[user, place], rel=1e-4, abs=1e-4)
        assert score.reward_rejected == pytest.approx(together.rejected[user, place], rel=1e-4, abs=1e-4)
    assert name == "reference" or len({score.margin for score in scores}) > 5


@pytest.mark.parametrize("name", ["per_user", "pal", "gpo"])
def test_rows_get_the_rewards_of_the_method(name, lm, features):
    check(name, lm, features)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in rewards.names() if n not in ("per_user", "pal", "gpo")])
def test_rows_get_the_rewards_of_the_other_methods(name, lm, features):
    check(name, lm, features)


@pytest.mark.parametrize("name", ["personal_arm", "p_dpo"])
def test_rows_get_the_rewards_of_tuned_models(name, lm):
    model, rows = tuned_model(name, lm), ROWS[:5]
    want = tuning.rewards(model, lm, [(row.prompt, row.rejected) for row in rows], [row.user for row in rows])
    scores = list(score_pairs(model, lm, rows, batch_size=3))
    np.testing.assert_allclose([score.reward_rejected for score in scores], want, rtol=1e-4, atol=1e-4)
    assert len({score.margin for score in scores}) == 5
    stranger = [Preference(user="eve", prompt="Q0", chosen="red", rejected="blue")]
    (score,) = score_pairs(model, lm, stranger, prior=True)
    alone = tuning.adapt(model, lm, [], ["eve"])
    assert score.reward_chosen == pytest.approx(float(tuning.rewards(alone, lm, [("Q0", "red")], ["eve"])[0]), abs=1e-5)
    assert score.at_prior


def test_a_tuned_model_that_is_the_same_for_all_knows_everybody(lm):
    (score,) = score_pairs(tuned_model("arm", lm), lm, [Preference(user="eve", prompt="Q", chosen="a", rejected="bc")])
    assert not score.at_prior
    assert (score.tokens_chosen, score.tokens_rejected) == (1, 2)


def test_the_command(folder, lm, features, tmp_path, capsys, monkeypatch):
    """Lines in the order of the file, for any batch size; the summary; users at the prior; a model on means."""
    model, _ = drawn("per_user", lm, features, "mean")
    export.save(model, tmp_path / "rm")
    export.save_report(tmp_path / "rm", "mean")
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n" + "".join(json.dumps(as_row(row)) + "\n" for row in ROWS))
    base = ["score", "--model", str(folder), "--rewards", str(tmp_path / "rm")]
    found = {}
    for size in ("8", "3"):
        monkeypatch.setenv(files.CACHE_VARIABLE, str(tmp_path / f"cache{size}"))
        assert cli.main([*base, str(path), "--batch-size", size]) == 0
        out, err = capsys.readouterr()
        found[size] = [json.loads(line) for line in out.splitlines()]
    names = ["user", "label", "reward_chosen", "reward_rejected", "margin", "agrees"]
    assert list(found["8"][0]) == [*names, "tokens_chosen", "tokens_rejected", "at_prior"]
    want = list(score_pairs(model, lm, ROWS, pooling="mean"))
    right, by_user = [], {}
    for row, score, *lines in zip(ROWS, want, *found.values(), strict=True):
        for line in lines:
            assert (line["user"], line["label"], line["at_prior"]) == (row.user, row.label, False)
            assert line["margin"] == pytest.approx(score.margin, abs=1e-4)
            assert line["margin"] == line["reward_chosen"] - line["reward_rejected"]
            assert line["tokens_chosen"] == len(row.chosen)  # one token a byte
            assert line["agrees"] is (None if row.label == 0.5 else (score.margin > 0) == (row.label > 0.5))
        if row.label != 0.5:
            right.append(lines[0]["agrees"])
            by_user.setdefault(row.user, []).append(lines[0]["agrees"])
    macro = np.mean([np.mean(own) for own in by_user.values()])
    assert f"accuracy: {100 * macro:.1f} % (mean over 3 users), {100 * np.mean(right):.1f} % (over 11 pairs)" in err
    assert "3 ties of the label, left out" in err

    strangers = [*ROWS[:2], Preference(user="anna", prompt="Q0", chosen="red", rejected="blue")]
    path.write_text("".join(json.dumps(as_row(row)) + "\n" for row in strangers))
    assert cli.main([*base, str(path)]) == 2
    assert "pairs.jsonl, line 3: the reward model 'per_user' does not know user 'anna'" in capsys.readouterr().err
    assert cli.main([*base, str(path), "--prior", "--out", str(tmp_path / "o.jsonl")]) == 0
    assert "1 user at the prior" in capsys.readouterr().err
    last = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()][-1]
    assert last["at_prior"]
    at_prior = model.reward(model.shared, model.prior, features.mean[[features.of("Q0", "red")]], features.prompt[0])
    assert last["reward_chosen"] == pytest.approx(float(at_prior[0]), abs=1e-4)


def test_the_command_on_a_tuned_model(folder, lm, tmp_path, capsys):
    tuned.save(tuned_model("personal_arm", lm), tmp_path / "rm")
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(as_row(row)) + "\n" for row in ROWS[:3]))
    assert cli.main(["score", str(path), "--model", str(folder), "--rewards", str(tmp_path / "rm")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_ties_are_apart():
    def score(user, chosen, rejected, label=1.0):
        return PairScore(
            user=user,
            label=label,
            reward_chosen=chosen,
            reward_rejected=rejected,
            tokens_chosen=1,
            tokens_rejected=1,
            at_prior=False,
        )

    scores = [score("a", 2, 1), score("a", 1, 1), score("b", 1, 2), score("b", 1, 2, 0.3), score("c", 1, 2, 0.5)]
    assert [one.agrees for one in scores] == [True, None, False, True, None]
    summary = summarise(scores)
    assert (summary.macro, summary.micro) == ((0.75 + 0.5) / 2, 2.5 / 4)
    assert (summary.users, summary.pairs, summary.ties, summary.undecided) == (2, 4, 1, 1)
    assert summarise(scores[-1:]).micro is None


def test_rows_that_cannot_be_judged(lm, features):
    model, _ = drawn("bt", lm, features)
    long = [*ROWS[:1], Preference(user="ann", prompt="Q", chosen="a", rejected="word " * 20)]
    with pytest.raises(InputError, match="batch_size = 0"):
        list(score_pairs(model, lm, ROWS, batch_size=0))
    with pytest.raises(InputError, match=r"row 2, field 'rejected': prompt and response have \d+ tokens, 100 of them"):
        list(score_pairs(model, lm, long))
    params = {**model.shared["params"], "v": np.full(16, np.nan, np.float32)}
    broken = RewardModel(
        method=model.method,
        shared={**model.shared, "params": params},
        user_params={},
        users=model.users,
        backbone=model.backbone,
    )
    with pytest.raises(InputError, match="row 1: the reward is not finite"):
        list(score_pairs(broken, lm, ROWS))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give either FILE"),
        (["F", "--responses", "R"], "give either FILE"),
        (["F"], "give --rewards"),
        (["F", "--rewards", "D", "--top-k", "4"], "--top-k goes with --responses"),
        (["F", "--rewards", "D", "--user", "ann"], "--user goes with --responses"),
        (["--responses", "R", "--prior"], "--prior goes with FILE"),
    ],
)
def test_flags_that_do_not_go_together(flags, message, capsys):
    assert cli.main(["score", "--model", "/nowhere", *flags]) == 2
    assert message in capsys.readouterr().err

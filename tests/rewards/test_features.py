"""Features of texts: equal to one text at a time, kept under the weights that made them, continued when interrupted."""

import dataclasses

import numpy as np
import pytest
import tiny

from jaxalign import models
from jaxalign.data.schema import Preference
from jaxalign.errors import InputError
from jaxalign.rewards.features import extract, pair_blocks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    config = dataclasses.replace(tiny.CONFIGS["llama3"], vocab_size=320)
    tiny.save(folder / "model", config, tiny.tensors(config))
    tiny.save_tokenizer(folder / "model")
    return folder / "model"


def test_features_equal_one_text_at_a_time_and_row_order_changes_nothing(folder, tmp_path):
    from jaxalign.decoding import score

    lm = models.load(str(folder))
    pairs = [
        Preference(user="u", prompt=f"Say {n}.", chosen=f"the sea is deep {n}", rejected=f"far {n}") for n in range(4)
    ]
    texts = [(row.prompt, text) for row in pairs for text in (row.chosen, row.rejected)]
    together = extract(lm, texts, cache=tmp_path / "features")
    for prompt, response in texts:
        alone = extract(lm, [(prompt, response)], batch_size=1)
        row = together.of(prompt, response)
        for name in ("last", "mean", "prompt"):
            np.testing.assert_allclose(getattr(together, name)[row], getattr(alone, name)[0], atol=2e-5)
        want = score(lm, [prompt], [response])[0]
        assert together.log_prob[row] == pytest.approx(want.log_prob, abs=1e-4)
        assert together.tokens[row] == want.num_tokens
    cached = extract(lm, texts, cache=tmp_path / "features")
    np.testing.assert_array_equal(cached.last, together.last)
    one, other = pair_blocks(pairs, together), pair_blocks(pairs[::-1], together)
    np.testing.assert_array_equal(one.chosen, other.chosen)


def test_a_long_prompt_is_refused_rather_than_cut_into_its_response(folder):
    """Cut from the right, both texts of the pair would be the same ids."""
    lm = models.load(str(folder))
    pairs = [("x" * (lm.config.max_position + 50), answer) for answer in ("yes", "no")]
    with pytest.raises(InputError, match=r"prompt 0 and its response have 164\d\d tokens .*shorten"):
        extract(lm, pairs)


def test_features_of_other_weights_are_not_taken_for_these(tmp_path):
    """The weights of a folder are replaced in place: nothing but themselves tells the two models apart."""
    config = dataclasses.replace(tiny.CONFIGS["llama3"], vocab_size=320)
    place, cache = tiny.save_tokenizer(tmp_path / "model"), tmp_path / "features"
    read = []
    for seed in (0, 1):
        tiny.save(place, config, tiny.tensors(config, seed=seed))
        read.append(extract(models.load(str(place)), [("Hi", "there")], cache=cache).last)
    assert np.abs(read[0] - read[1]).max() > 1e-3
    np.testing.assert_array_equal(read[1], extract(models.load(str(place)), [("Hi", "there")]).last)


def test_features_continue_where_they_were_interrupted(folder, tmp_path):
    lm = models.load(str(folder))
    texts = [("Say it.", f"word {number}") for number in range(12)]
    cache, done = tmp_path / "features", []

    def interrupt(count):
        done.append(count)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(lm, texts, cache=cache, batch_size=4, progress=interrupt)
    again = []
    resumed = extract(lm, texts, cache=cache, batch_size=4, progress=again.append)
    # What was there is reported at once, as one item; then only the last batch is computed.
    assert again == [8, 4]
    np.testing.assert_allclose(resumed.last, extract(lm, texts, batch_size=4).last, atol=2e-5)


def test_shares_over_one_cache_are_to_the_bit_what_one_process_reads(folder, tmp_path):
    from jaxalign import models

    lm = models.load(str(folder))
    texts = [("Say it.", "the sea is deep " * (1 + n % 3) + str(n)) for n in range(11)]
    whole = extract(lm, texts, batch_size=4)
    counts = []
    for share in range(2):
        extract(lm, texts, cache=tmp_path / "features", batch_size=4, share=(share, 2), progress=counts.append)
    # Batches of 4, 4 and 3 texts: the first and the last are one's; the other then finds them in the cache.
    assert counts == [4, 3, 7, 4]
    read = []
    joined = extract(lm, texts, cache=tmp_path / "features", batch_size=4, progress=read.append)
    assert read == [11]
    for name in ("last", "mean", "prompt", "log_prob"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))

"""The torch peers do what we do: same weights, same tokens, same rewards."""

import dataclasses
import importlib.util

import numpy as np
import pytest

from benchmarks import flags, score
from benchmarks.cases import Case, prepare

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed (extra 'peers')", allow_module_level=True)
from benchmarks.peers import decode_torch, score_torch

pytestmark = [
    pytest.mark.peers,
    # The torch library's own warnings are not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def lm():
    flags.TINY = dataclasses.replace(flags.TINY, num_layers=2, vocab_size=256)
    return flags.load_model("tiny", random=True, dtype="float32", layers="unrolled")


def test_peers_give_our_tokens(lm):
    case = Case(batch=2, prompt=7, new_tokens=6, top_k=3)
    ours = {}
    for kind in ("none", "head", "separate", "autoregressive"):
        ours[kind] = prepare(dataclasses.replace(case, kind=kind), lm)
        ours[kind].run()
    # The reward must change something, or ARGS would be plain decoding and the comparison would show nothing.
    assert (ours["head"].output != ours["none"].output).any()
    all_peers = decode_torch.Peers(lm, weight=0.5)
    peers = all_peers.arms(case, rows=2) + all_peers.arms(dataclasses.replace(case, batch=1), rows=1)[-1:]
    assert [peer.arm.name for peer in peers] == ["HF generate", "ARGS", "two-model logits", "ARGS, no cache"]
    assert [peer.new_tokens for peer in peers] == [6, 6, 6, decode_torch.FEW]
    for peer in peers:
        seconds = peer.arm.run()
        assert seconds["total"] > 0
        for kind in peer.equals:
            expected = ours[kind].output[: peer.rows, : peer.new_tokens]
            np.testing.assert_array_equal(peer.output(), expected, err_msg=peer.arm.name)


def test_the_pair_loop_gives_our_rewards(lm):
    ours = score.Prepared(score.Case(kind="reward", batch=4, prompt=5, response=6), lm)
    ours.run()
    theirs = score_torch.Peer(lm).pairs(ours.texts)
    theirs.arm.run()
    np.testing.assert_allclose(theirs.output(), np.asarray(ours.output)[:, 0, 0], rtol=1e-4, atol=1e-5)

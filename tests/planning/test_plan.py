"""Plans: what is refused without a compiler, and, with libtpu, what must hold for the real programs."""

import importlib.util

import pytest

from jaxalign.errors import InputError
from jaxalign.models import DecoderConfig
from jaxalign.planning import chips, roofline
from jaxalign.planning.chips import PlanError, Topology
from jaxalign.planning.hlo import Collective
from jaxalign.planning.plan import candidate_meshes, make_plan
from jaxalign.planning.programs import Workload

WORK = Workload(batch=64, prompt=512, new_tokens=128, top_k=10)


def test_topologies():
    assert Topology.parse("v5p:2x2x4").chips == 16
    assert str(Topology.parse("v5e:16x16")) == "v5e:16x16"
    for wrong in ("v5e", "v5e:4", "v5e:4x4x4", "v5p:4x4", "v9:4x4", "v5e:0x4", "v5e:4x"):
        with pytest.raises(InputError, match="write for instance"):
            Topology.parse(wrong)


def test_without_libtpu_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PlanError, match=r"pip install 'jaxalign\[tpu\]'"):
        Topology.parse("v5e:4x4").devices()


def test_meshes_worth_compiling():
    seven = DecoderConfig.qwen2_5_7b()
    # 28 heads: not over 8. Whole weights of 15 GB do not fit beside a cache into 16 GiB.
    assert candidate_meshes(Topology.parse("v5e:4x4"), seven, WORK) == [
        {"users": 8, "model": 2},
        {"users": 4, "model": 4},
    ]
    big = candidate_meshes(Topology.parse("v5p:2x2x4"), DecoderConfig.llama_3_1_70b(), WORK)
    assert big[0] == {"users": 8, "model": 2}
    assert candidate_meshes(Topology.parse("v5e:2x2"), DecoderConfig.llama_3_1_70b(), WORK) == []


def test_meshes_and_batches_that_do_not_fit():
    with pytest.raises(InputError, match="has 8 devices; v5e:4x4 has 16"):
        make_plan(Topology.parse("v5e:4x4"), DecoderConfig.qwen2_5_7b(), WORK, {"users": 4, "model": 2}, devices=[])


def test_roofline_by_hand():
    chip = chips.Chip(hbm=1, flops=10.0, bandwidth=5.0, links=2.0, dimensions=2)
    time = roofline.step_time(chip, 20.0, 20.0, [Collective("all-reduce", "model", 4, 4, True, 3)])
    assert (time.products, time.memory) == (2.0, 4.0)
    assert time.links == pytest.approx(2 * 3 / 4 * 4 * 3 / 2)
    assert time.total == pytest.approx(13.0)
    assert time.bound == "links"
    config = DecoderConfig.qwen2_5_7b()
    assert roofline.cache_bytes(config, 2, 10, 2, 4) == 2 * 28 * 2 * 1 * 10 * 128 * 2
    assert roofline.cache_bytes(config, 2, 10, 2, 7) == 2 * 28 * 2 * 4 * 10 * 128 * 2


@pytest.mark.tpu_aot
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("topology", "model", "mesh"),
    [
        ("v5e:4x4", "qwen2.5-7b", {"users": 4, "model": 4}),
        ("v5p:2x2x4", "llama-3.1-70b", {"users": 1, "model": 16}),
    ],
)
def test_large_models_fit_and_users_never_meet(topology, model, mesh):
    pytest.importorskip("libtpu")
    plan = make_plan(Topology.parse(topology), DecoderConfig.named(model), WORK, mesh)
    assert plan.fits
    assert plan.crossing == []
    assert any(one.in_loop and one.axis == "model" for one in plan.programs[1].collectives)


@pytest.mark.tpu_aot
@pytest.mark.timeout(3600)
def test_work_per_chip_does_not_grow_with_the_pod():
    pytest.importorskip("libtpu")
    costs = []
    for topology, users in (("v5e:2x2", 1), ("v5e:4x4", 4)):
        work = Workload(batch=8 * users, prompt=64, new_tokens=16, top_k=10)
        plan = make_plan(Topology.parse(topology), DecoderConfig.qwen2_5_0_5b(), work, {"users": 2 * users, "model": 2})
        costs.append([(one.compiled_flops, one.compiled_bytes, one.bytes) for one in plan.programs])
    for small, large in zip(*costs, strict=True):
        assert large == pytest.approx(small, rel=0.01)

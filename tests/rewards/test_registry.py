import dataclasses

import pytest

from jaxalign import rewards
from jaxalign.errors import InputError
from jaxalign.rewards import registry
from jaxalign.rewards.methods.bt import BradleyTerryHead


def test_names_and_classes_agree():
    for name in rewards.names():
        assert registry.find(name).name == name
        assert rewards.make(name) == rewards.make(name)
        assert registry.rebuild(registry.describe(rewards.make(name))) == rewards.make(name)


def test_wrong_names_get_a_hint():
    with pytest.raises(InputError, match=r"no reward model 'lroe'. Did you mean 'lore'"):
        rewards.make("lroe")
    with pytest.raises(InputError, match=r"'lore' has no hyper-parameter 'rnak'. Did you mean 'rank'"):
        rewards.make("lore", rnak=3)


def test_register_refuses_a_name_that_is_taken():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(BradleyTerryHead):
        pass

    with pytest.raises(InputError, match="There is a reward model 'bt' already"):
        registry.register(Other)

"""Estimators in folders: a network is built only if its weights are those of its config."""

import time

import pytest
import torch

from statespan.estimators import store
from statespan.estimators.horizon import Horizon, HorizonConfig
from statespan.estimators.network import Network, NetworkConfig
from statespan.models.pretrained import LoadError

OPTIONS = {"d_model": 4, "d_state": 4, "layer": "s4d"}
CONFIGS = {
    Network: lambda n: NetworkConfig("classifier", 2, 1, 4, {**OPTIONS, "d_output": 3, "n_layers": n}),
    Horizon: lambda n: HorizonConfig(2, 8, 4, 0, 0, "last", False, False, {**OPTIONS, "n_layers": n}),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_network_is_built_if_its_weights_are_there(kind):
    network = kind(CONFIGS[kind](17))  # more than those that are built without a look at the number
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    built = store.build(kind, CONFIGS[kind](17), {**tensors, "array.past": torch.zeros(2)})
    assert all((value == tensors[f"network.{name}"]).all() for name, value in built.state_dict().items())
    begun = time.process_time()
    with pytest.raises(LoadError, match=r"30000 layers must have \d+ weights by name, got"):
        store.build(kind, CONFIGS[kind](30_000), {**tensors, "network.more": torch.zeros(10**6)})
    assert time.process_time() - begun < 2.0
    with pytest.raises(LoadError, match="does not match its weights"):
        store.build(kind, CONFIGS[kind](30_000), tensors)

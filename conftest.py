"""What a test or a doctest registers is forgotten after it, wherever it is: in tests, docs or docstrings."""

import sys

import pytest

REGISTRIES = {
    "statespan.data.registry": ("REGISTRY",),
    "statespan.models.config": ("ADDED_LAYERS",),
    "statespan.models.registry": ("ADDED_MODELS",),
    "statespan.ssm.inits": ("ADDED_INITS",),
    "statespan.train.parts": ("METRICS", "OPTIMIZERS", "SCHEDULES"),
}


@pytest.fixture(autouse=True)
def _registered_names_are_forgotten():
    yield
    for module, names in REGISTRIES.items():
        for name in names if module in sys.modules else ():
            registry = getattr(sys.modules[module], name)
            for item, owner in registry.owners().items():
                if name != "REGISTRY" or not owner.startswith("statespan "):  # our datasets are imported once
                    del registry._items[item]

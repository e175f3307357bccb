"""One thread a process (the arrays are small, and results must not depend on the machine), one seed a test.

Without a GPU the Triton kernels run interpreted, which has to be said before anything imports triton.
"""

import os
from collections import Counter

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from tests.data.real import VARIABLE
from tests.view.browser import VARIABLE as BROWSER

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")
torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.interpreter import hasten

    hasten()


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # before -m "not soak" is heard
def pytest_collection_modifyitems(config, items):
    """Leave tests of real data to those who name a folder that has it, and those of a browser to those who have one.

    Most cases of a long grid are left to the soak.

    ``share(n)`` keeps every n-th case of a parametrized test. Choose an n that is prime to the sizes of the inner axes,
    so that every value of each is among those that stay.
    """
    for marker, variable in (("real_data", VARIABLE), ("browser", BROWSER)):
        if os.environ.get(variable):
            continue
        absent = [item for item in items if item.get_closest_marker(marker)]
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in set(absent)]
    seen = Counter()
    for item in items:
        if (mark := item.get_closest_marker("share")) and hasattr(item, "callspec"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % mark.args[0]:
                item.add_marker(pytest.mark.soak)
            seen[test] += 1

"""One thread a process (the arrays are small, and results must not depend on the machine), one seed a test.

Without a GPU the Triton kernels run interpreted, which has to be said before anything imports triton.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from tests.data.real import VARIABLE

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


def pytest_collection_modifyitems(config, items):
    """Tests of real data are there for those who name a folder that has it."""
    if not os.environ.get(VARIABLE):
        absent = [item for item in items if item.get_closest_marker("real_data")]
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in set(absent)]

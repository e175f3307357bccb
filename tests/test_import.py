"""What importing statespan costs."""

import subprocess
import sys

PROGRAM = """
import sys
import numpy, torch
before = {name.partition(".")[0] for name in sys.modules}
import statespan
after = {name.partition(".")[0] for name in sys.modules}
print(*sorted(after - before - sys.stdlib_module_names))
"""


def test_import_needs_only_torch_and_numpy():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["statespan"]


def test_import_without_anything_else_installed():
    """With every other package of this environment hidden."""
    hide = "sys.modules.update({n: None for n in ('scipy', 'sklearn', 'hypothesis', 'rich', 'mpmath', 'triton')})"
    program = f"import sys; {hide}; import statespan; print(statespan.S4D(2).d_model)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "2\n"


def test_public_names():
    import statespan

    assert {"S4", "S4D", "DSS", "LSSL", "param_groups", "ssm", "nn", "ops", "__version__"} == set(statespan.__all__)
    assert all(hasattr(statespan, name) for name in statespan.__all__)

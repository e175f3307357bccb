# Two commands are all a newcomer needs; each does its own set-up.
#   make run    trains a small S4D on handwritten digits and prints its test accuracy
#   make test   lint, types and tests (a few minutes on two cores)
#   make soak   the long counts of the promises (not part of `make test`)
#   make lock   requirements/ci.lock.txt again: the newest versions that constraints.txt allows, with their hashes
#   make gallery  the pictures of docs/gallery.md and docs/tutorial.md again (minutes, and needs MNIST and ETTh1)

# Bytecode goes into .venv, whatever the shell says: without it every process of the tests would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test soak gallery lint lock clean

run: $(READY)
	$(BIN)/python examples/digits.py

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not soak"

soak: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m soak

gallery: $(READY)
	grep '^    statespan' docs/gallery.md | PATH="$(CURDIR)/$(BIN):$$PATH" sh -e
	$(BIN)/python examples/tutorial.py --out docs/tutorial

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The CPU build of PyTorch is not on PyPI: it comes from the wheels that pip is pointed to, or from PyTorch's index.
lock:
	$(PYTHON) -m pip install -q --no-compile --upgrade --target build/uv uv
	build/uv/bin/uv pip compile -q --no-config --generate-hashes --no-annotate --no-header --prerelease disallow \
		--extra test --python-version 3.11 --python-platform x86_64-manylinux_2_28 --constraints constraints.txt \
		$(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS),--torch-backend cpu) --no-emit-find-links \
		pyproject.toml requirements/ci.in >build/ci.lock.txt
	{ grep '^#' requirements/ci.in; cat build/ci.lock.txt; } >requirements/ci.lock.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The marker is written last, so an interrupted set-up starts again. LOCKED=1: only files whose hashes are known, as CI does.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
ifdef LOCKED
	$(BIN)/python -m pip install -q --no-compile --require-hashes -r requirements/ci.lock.txt
	$(BIN)/python -m pip install -q --no-compile --no-deps --no-build-isolation -e .
else
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e ".[test]"
endif
	touch $@

# Two commands are all a newcomer needs; each does its own set-up.
#   make run    trains a small S4D on handwritten digits and prints its test accuracy
#   make test   lint, types and tests (a few minutes on two cores)
#   make soak   the long counts of the promises (not part of `make test`)
#   make gallery  the pictures of docs/gallery.md and docs/tutorial.md again (minutes, and needs MNIST and ETTh1)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test soak gallery lint clean

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

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The marker is written last, so an interrupted set-up starts again.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[test]"
	touch $@

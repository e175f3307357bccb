# A newcomer needs two commands, `make run` and `make test`; each sets up its own environment.
#   make run      trains a small S4D on handwritten digits and prints its test accuracy
#   make test     runs lint, type checks and tests (a few minutes on two cores)
#   make soak     runs the long grids of the tests (not part of `make test`)
#   make lock     updates requirements/ci.lock.txt: the newest versions that constraints.txt allows, with hashes
#   make gallery  redraws the pictures of the documentation (minutes; needs MNIST and ETTh1)
#   make site     builds the documentation as a site in build/site (open build/site/index.html), and checks it

# Write bytecode even if the shell forbids it: otherwise every test process recompiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready

.PHONY: run test soak gallery site lint lock lock-site clean

run: $(READY)
	$(BIN)/python examples/digits.py

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not soak"

soak: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m soak

gallery: $(READY)
	grep '^    statespan' docs/gallery.md | PATH="$(CURDIR)/$(BIN):$$PATH" sh -e
	$(BIN)/python examples/tutorial.py --out docs/tutorial
	$(BIN)/python -m website.notebook

site: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m website.check build/site

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# PyPI does not have the CPU build of PyTorch: take it from PIP_FIND_LINKS, or else from PyTorch's index. What the site
# needs beside the packages of the tests has a file of its own.
COMPILE = build/uv/bin/uv pip compile -q --no-config --generate-hashes --no-annotate --no-header --prerelease disallow \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-emit-find-links

lock:
	$(PYTHON) -m pip install -q --no-compile --upgrade --target build/uv uv
	$(COMPILE) --extra test --constraints constraints.txt \
		$(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS),--torch-backend cpu) \
		pyproject.toml requirements/ci.in >build/ci.lock.txt
	{ grep '^#' requirements/ci.in; cat build/ci.lock.txt; } >requirements/ci.lock.txt
	$(MAKE) lock-site

lock-site:
	$(COMPILE) --constraints constraints.txt --constraints requirements/ci.lock.txt requirements/site.in >build/site.lock.txt
	{ grep '^#' requirements/site.in; cat build/site.lock.txt; } >requirements/site.lock.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The marker is written last, so an interrupted set-up starts over. LOCKED=1 installs only hash-locked files, as CI does.
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

$(DOCS_READY): $(READY) requirements/site.lock.txt
ifdef LOCKED
	$(BIN)/python -m pip install -q --no-compile --require-hashes -r requirements/site.lock.txt
else
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e ".[docs]"
endif
	touch $@

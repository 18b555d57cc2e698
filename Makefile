# PairMQ's developer commands. `make` or `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
PYPROJECTS := pyproject.toml $(wildcard plugins/*/pyproject.toml)

ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 5
TIERS = $(BIN)/python scripts/tiers.py --workers $(WORKERS)
UPGRADE ?=
HOURS ?=
NAME ?=
# What begins with an underscore, and the maker of journals, belongs to others.
BENCHMARKS := $(filter-out _% journal_generator run_all,$(patsubst benchmarks/%.py,%,$(wildcard benchmarks/*.py)))

.DEFAULT_GOAL := help
# What takes minutes in a fresh clone is done side by side.
READY = $(MAKE) --no-print-directory --jobs 2 setup

.PHONY: help setup system smoke demo test test-servers test-spark test-sail test-all test-rest test-long matrix coverage soak simulate chaos mutants model bench bench-one check docs site format lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the pinned dependencies, PairMQ and its plugins (PYTHON=...)

$(STAMP): requirements/dev.txt $(PYPROJECTS) scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh "$(VENV)"
	@touch $@

system: ## install the system packages the tests need (redis-server, rabbitmq-server, postgresql, pgbouncer, openssl, java, chromium)
	@scripts/system-packages.sh

# Not a part of the help: `make test` runs without them, too, and says so.
smoke:
	@scripts/system-packages.sh smoke

demo: setup ## watch a failover happen (ARGS=... go to `pairmq demo`)
	@$(BIN)/pairmq demo $(ARGS)

# The tiers: what each test needs decides where it runs, see docs/contributing/testing.md.
test: ## checks, and beside them the tests that need Python alone, and an outage of a server of each product (PYTEST_ARGS=... go to pytest)
	@$(READY) smoke
	@$(TIERS) --checks first $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

test-servers: ## tests with real servers: conformance, integration, chaos
	@$(READY) system
	@$(TIERS) servers $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

test-spark: ## tests of the pipeline that need Spark
	@$(READY) system
	@$(TIERS) spark $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

# Sail wants another client than the one of the tests, and so an environment of its own.
build/sail:
	@$(PYTHON) -m venv $@.new && $@.new/bin/pip install --quiet pysail 'pyspark-client>=4.1,<4.2' --editable '.[journal]'
	@mv $@.new $@

test-sail: build/sail ## the pipeline on Sail, which takes 500 MB of packages from PyPI
	@$(READY) system
	@PAIRMQ_SAIL_PYTHON=build/sail/bin/python $(BIN)/pytest --tier long tests/pipeline/test_sail.py $(PYTEST_ARGS)

test-all: ## checks, all tiers, and 300 simulated hours
	@$(READY) system
	@$(TIERS) --checks first servers spark search simulated

test-rest: ## what .ci/run runs after test: the other tiers, 300 simulated hours, other event loops, the model
	@$(READY) system
	@$(TIERS) servers spark search eager uvloop simulated model

test-long: build/sail ## what takes minutes: more outages of real servers, more examples; Spark's kills, drains, judged chaos journals, a cluster, Connect, Sail
	@$(READY) system
	@PAIRMQ_TEST_SPARK_KILLS=5 PAIRMQ_SAIL_PYTHON=build/sail/bin/python $(TIERS) long examples -- $(PYTEST_ARGS)

# The row goes to docs/reference/versions.md; no container is needed, and nothing is installed.
matrix: setup ## run a tier with the Python and the servers of another Debian (SUITE=trixie TIER=servers WORKERS=2)
	@$(BIN)/python scripts/matrix.py --tier $(or $(TIER),first) --workers $(WORKERS) $(or $(SUITE),trixie) $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

coverage: setup ## lines of the core, the runner, the pair and the transport contract that the first tier runs
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q --tier first --hypothesis-seed 0 --forks $(WORKERS) $(PYTEST_ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered

soak: setup system ## the long tests: files of a million lines through outages, a million sends with both brokers away (LINES=...)
	@PAIRMQ_TEST_LINES="$(or $(LINES),1000000)" PAIRMQ_TEST_KILLS_LINES="$(or $(LINES),1000000)" \
		PAIRMQ_TEST_SENDS="$(or $(LINES),1000000)" \
		$(BIN)/python -m pytest -q --timeout 3600 --tier first --tier servers --tier long tests/hostile/test_bounded_memory.py \
		tests/integration/test_file_through_an_outage.py tests/integration/test_file_through_kills.py

# With HOURS what was simulated is kept in a file, so that the same command goes on where it was stopped.
simulate: setup ## 300 simulated hours of failures, judged (HOURS=10000 can be resumed; ARGS=... go to `pairmq simulate`)
	@$(BIN)/pairmq simulate $(or $(ARGS),$(if $(HOURS),--seeds 0..$(shell expr $(HOURS) - 1) --state simulated.jsonl,--seeds 0..299))

chaos: setup system ## random faults on real servers, judged (ARGS=--pair rabbitmq,redis --minutes 5 --seed N)
	@$(BIN)/python -m pairmq.testing.chaos $(ARGS)

mutants: setup ## plant bugs, and see whether the simulation or a test finds each (ARGS=--only NAME)
	@$(BIN)/python scripts/mutants.py $(ARGS)

model: setup ## search the core in small worlds: 27 hazards planted, then the real rules (ARGS="--hazard 7", --write)
	@$(BIN)/python scripts/model.py $(ARGS)

bench: setup system ## all benchmarks beside their peers; figures and pictures go to docs/performance (ARGS="--only NAME")
	@$(BIN)/python benchmarks/run_all.py $(ARGS)

bench-one: setup system ## one benchmark, by its file's name (NAME=redis_send ARGS=--json)
	@test -f "benchmarks/$(NAME).py" || { echo "give NAME, one of:" $(BENCHMARKS) >&2; exit 2; }
	@$(BIN)/python benchmarks/$(NAME).py $(ARGS)

docs: setup ## write the generated parts of the reference from the code
	@$(BIN)/python scripts/generate_docs.py

# Material for MkDocs prints its own plans on every run; they are not about this site. Not --quiet: what is not logged
# is not counted as a warning either.
site: setup ## build the documentation as a site in build/site, with warnings as errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site: build/site/index.html; its search needs a server: $(BIN)/python -m http.server --directory build/site"

check: setup ## lint, formatting, types and architecture, without running tests
	@echo "check: ruff check"
	@$(BIN)/ruff check .
	@echo "check: ruff format"
	@$(BIN)/ruff format --check .
	@echo "check: mypy"
	@$(BIN)/mypy
	@echo "check: generated docs"
	@$(BIN)/python scripts/generate_docs.py --check
	@echo "check: lint-imports"
	@$(BIN)/lint-imports --no-logo

format: setup ## sort imports, fix what ruff can fix, format
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

lock: ## pin requirements/dev.in into requirements/dev.txt (UPGRADE=1 moves the pins up)
	@PYTHON="$(PYTHON)" UPGRADE="$(UPGRADE)" scripts/lock.sh

clean: ## remove caches and build results (keeps .venv)
	@scripts/clean.sh

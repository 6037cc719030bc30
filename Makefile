# Two commands: `make demo` and `make test`. What they need is fetched on the first run; later runs need no network.

# The versions that are tested; the first that is found makes the environment, or any newer `python3`.
PYTHONS = 3.11 3.12 3.13 3.14
ifndef PYTHON
PYTHON := $(firstword $(foreach p,$(PYTHONS:%=python%) python3,$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $(p))))
endif
NO_PYTHON = One of Python $(PYTHONS) is needed (PYTHON=/path/to/python3.11 make ...)
VENV   ?= .venv
BIN     = $(VENV)/bin
export VENV
# where `make ci-tools` puts a Go that is new enough
export PATH := $(CURDIR)/.tools/go/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup install demo test test-spark test-docker test-clients test-pythons producers bench gate bench-audit bench-spark drill sim nightly ci ci-tools lint format types arch mutants docs lock clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## .venv and jars by their locks; does nothing when both are up to date
	@test -n "$(PYTHON)" || { echo '$(NO_PYTHON)' >&2; exit 1; }
	@$(PYTHON) -m tools.setup

install: ## for production, by its lock: PART=client|worker|sink|all VENV=/opt/uow
	@test -n "$(PYTHON)" || { echo '$(NO_PYTHON)' >&2; exit 1; }
	@$(PYTHON) -m tools.setup $(or $(PART),$(error PART=client|worker|sink|all says what to install, VENV=/opt/uow where))

demo: setup ## both stories on an embedded broker; ARGS='low-stock --keep' for one
	@$(BIN)/uow demo $(ARGS)
	@$(if $(ARGS),,$(BIN)/uow demo low-stock)

# Nine processes, which share a broker, also on two cores: they wait more than they work. With Spark's tests seven, of which three have a session each. PARALLEL= for one.
PARALLEL ?= -n 9 --no-loadscope-reorder
WITH_SPARK = -n 7 --no-loadscope-reorder
# A test is tried once (decision 110). RERUNS=1 tries one that fails once more, says so, and keeps it in .flaky/tried-twice.jsonl.
RERUNS  ?= 0
# Tests with a Spark session, one in a hundred, take as long as all others together (decision 103): `make ci` has them, and is one run of both.
TIERS   ?= -m 'not spark and not docker and not drill and not clients'
test: setup ## every test but those with a Spark session, the docker tier and the drills; ARGS='-k name' selects
	@$(BIN)/python -m pytest $(PARALLEL) --reruns $(RERUNS) $(TIERS) $(SKIPS) $(ARGS)

test-spark: setup ## the tests with a Spark session
	@$(BIN)/python -m pytest $(WITH_SPARK) --reruns $(RERUNS) -m 'spark and not docker and not drill' $(ARGS)

test-docker: setup ## the docker tier: compose and testcontainers; skips where no engine answers
	@UOW_TEST_BROKER=docker $(BIN)/python -m pytest -m docker $(ARGS)

# Fetched once, by their locks; where a tool is missing, or its registry cannot be reached, the test of that language is skipped and says so.
PRODUCERS = examples/producers
test-clients: setup producers ## the example programs in Java, Go and Node, through a broker and a worker
	@$(BIN)/python -m pytest -m clients $(ARGS)

producers:
	@if command -v npm >/dev/null && [ ! -d $(PRODUCERS)/node/node_modules ]; then npm ci --no-audit --no-fund --prefix $(PRODUCERS)/node || true; fi
	@if command -v go >/dev/null; then cd $(PRODUCERS)/go/kafka && GOFLAGS=-mod=readonly go mod download || true; fi

test-pythons: setup ## two minutes of tests and a demo on each other tested Python of this machine (.venvs); ONLY=3.13 for one
	@$(BIN)/python -m tools.pythons $(ONLY)

bench: setup ## cost per component against the two comparison loops
	@$(BIN)/python -m bench $(ARGS)

gate: setup ## this tree by turns with the reference (bench/reference.md): fails when it is 15 % slower three times in a row
	@$(BIN)/python -m bench.gate $(GATE)

bench-audit: setup ## time and CPU of an audit beside those of the sink, of the same components
	@$(BIN)/python -m bench.audit $(ARGS)

bench-spark: setup ## rows a second and CPU of the sink against queries that copy, and that decode, the same topic
	@$(BIN)/python -m bench.spark $(ARGS)

MINUTES ?= 20
TIMES ?= 1000
WAYS_SECONDS ?= 300
drill: setup ## uow prove, the long version; MINUTES= SEED= TIMES= WAYS_SECONDS= ARGS='--workers 3' (docs/prove.md)
	@UOW_DRILL_TIMES=$(TIMES) UOW_WAYS_SECONDS=$(WAYS_SECONDS) $(BIN)/python -m pytest -q -m drill
	@$(BIN)/uow prove --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

sim: setup ## simulated clusters under faults: SEEDS=0..9999, ARGS='-j 2'
	@$(BIN)/python -m uow.processor.sim --seeds $(or $(SEEDS),0..9999) $(ARGS)

HOURS ?= 6
nightly: setup producers ## what `make ci` leaves out, bounded in time: HOURS=6 STEPS='sim drills' (docs/nightly.md)
	@$(BIN)/python -m tools.nightly --hours $(HOURS) $(STEPS)

ci: TIERS = -m 'not docker and not drill'
ci: PARALLEL = $(WITH_SPARK)
ci: SKIPS = --no-skips
ci: lint types arch producers test-pythons test gate ## what CI runs: `make test` with the tests of Spark and of other languages and Pythons, lint, types, import contracts and the gate

ci-tools: setup ## what CI installs first: javac, Node, Go and Chromium, where they are missing
	@$(BIN)/python -m tools.ci_tools

lint: setup ## ruff: rules and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup ## repair what lint complains about, where it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: setup ## mypy, strict
	@$(BIN)/mypy

arch: setup ## import contracts between the rooms
	@$(BIN)/lint-imports

mutants: setup ## small faults in processor/core, and which of them no test notices (docs/mutants.md); ARGS='decide --part 1/4 -j 2'
	@nice $(BIN)/python -m tools.mutants $(ARGS)

docs: setup ## write the generated pages again
	@$(BIN)/python -m tools.docs $(ARGS)

# The repository does not say where it is published: the one who releases it does (decision 111).
.PHONY: dist
dist: setup ## a release's sdist and wheel, in dist/: PROJECT_URL=https://... is the address of the repository
	@test -n "$(PROJECT_URL)" || { echo 'dist: PROJECT_URL=https://... is missing: the address of the repository, which the links of the package and of README lead to' >&2; exit 1; }
	@git diff --quiet HEAD || { echo 'dist: there are changes that are not committed (git status)' >&2; exit 1; }
	@rm -rf dist
	@UOW_PROJECT_URL='$(PROJECT_URL)' $(BIN)/python -m hatchling build -t sdist -t wheel

# The locks name hashes, and no index. Needs uv on the path; jars are resolved by jgo into a scratch folder. It runs in the environment that is there:
# `setup` would refuse locks that are older than pyproject.toml.
RENEW ?= --upgrade
COMPILE = uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header --no-emit-index-url
FOR_WORKER = --extra worker --extra rules --extra postgresql
FOR_SINK = --extra spark --extra java
lock: ## maintainers: the newest set within pyproject.toml, *.in and jars.toml (docs/versions.md); RENEW= keeps what fits
	for name in build go pip-oldest pip-newest; do $(COMPILE) $(RENEW) --no-annotate requirements/$$name.in -o requirements/$$name.lock || exit 1; done
	$(COMPILE) $(RENEW) --all-extras -c requirements/build.lock -c requirements/jars.in pyproject.toml -o requirements/all.lock
	for part in client 'worker $(FOR_WORKER)' 'spark $(FOR_SINK)' 'production $(FOR_WORKER) $(FOR_SINK)'; do set -- $$part; name=$$1; shift; \
		$(COMPILE) --no-annotate "$$@" -c requirements/all.lock pyproject.toml -o requirements/$$name.lock || exit 1; done
	$(BIN)/python tools/lock_jars.py

clean: ## caches and reports
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage htmlcov build dist

distclean: clean ## also the environment and the jars
	rm -rf $(VENV) .venvs .tools .jars .setup.lock

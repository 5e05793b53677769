# Everything runs in a virtual environment of its own; a machine needs Python 3.11 or later and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MINUTES ?= 10
ROUNDS ?= 20

.PHONY: demo demo-postgres test lint check soak faults bench bench-quick bench-long bench-failover mutants docs transcript lock clean

demo: $(VENV)/ready-run  ## three replicas, one killed, the books checked
	$(BIN)/rota demo

demo-postgres: $(VENV)/ready-dev  ## the same on a Postgres that comes in a wheel
	$(BIN)/rota demo --postgres

test: $(VENV)/ready-dev  ## the whole suite: it mostly waits, so several files at a time; none is kept for the end
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/ready-dev  ## style, types, direction of imports
	$(BIN)/ruff check src tests tools bench examples
	$(BIN)/ruff format --check src tests tools bench examples
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

soak: $(VENV)/ready-run  ## two workers for MINUTES, with kills
	$(BIN)/rota soak --minutes $(MINUTES)

faults: $(VENV)/ready-dev  ## the fault tests, ROUNDS of each
	ROTA_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest tests/cluster

bench: $(VENV)/ready-dev  ## how fast, beside raw SQL in the same run
	$(BIN)/python -m bench

bench-quick: $(VENV)/ready-dev  ## see that the benchmark runs
	$(BIN)/python -m bench --quick

bench-long: $(VENV)/ready-dev  ## the same with two million runs in a queue and 100 kills
	$(BIN)/python -m bench --long

bench-failover: $(VENV)/ready-dev  ## how soon the next leader begins, after 100 kills, 20 freezes, 20 silent cuts
	$(BIN)/python -m bench --long --only failover

mutants: $(VENV)/ready-dev  ## break rota on purpose, see that a test notices
	$(BIN)/python tools/mutants.py

docs: $(VENV)/ready-dev  ## the site of the documentation, into site/
	$(BIN)/mkdocs build --strict

transcript: $(VENV)/ready-dev  ## docs/commands.md, from what the commands print
	ROTA_TEST_WRITE_TRANSCRIPT=1 $(BIN)/python -m pytest tests/cli/test_transcript.py

lock: $(VENV)/ready-dev  ## renew the pinned versions
	$(BIN)/python tools/lock.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis site

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "rota needs Python 3.11 or later; say: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The locks name all there is (--no-deps): asked to look for itself, an older pip wants the newest of what has extras, which has no hash.
$(VENV)/ready-run: $(VENV)/python requirements.lock pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/ready-dev: $(VENV)/ready-run requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.lock
	@touch $@

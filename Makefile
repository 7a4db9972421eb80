# Every target sets itself up: a fresh clone needs nothing but Python and the package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test lowest wheel-check bench bench-ship lint format schema soak clean fuzz

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One process a core with one thread each: the networks of the tests are too small for threads.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --durations 25

# Environments of their own, outside of the clone: the lowest version of each dependency; the wheel and nothing else.
lowest: $(READY)
	$(BIN)/python -m tests.packaging.lowest

wheel-check: $(READY)
	$(BIN)/python -m tests.packaging.wheel

demo: $(READY)
	$(BIN)/filtergroups demo --run runs/demo

schema: $(READY)
	$(BIN)/python -c "import json; from filtergroups.config_schema import SCHEMA, config_schema; SCHEMA.write_text(json.dumps(config_schema(), indent=1) + '\n')"

# Damaged and hostile files by the thousand; stopped, it goes on where it was: make fuzz FUZZ="--folder /tmp/fuzz"
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(FUZZ)

bench: $(READY)
	$(BIN)/python benchmarks/cost.py

bench-ship: $(READY)
	$(BIN)/python benchmarks/ship.py

# Kills at random moments, over all commands; KILLS=30 for a short one. Stopped, it goes on.
soak: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak $(if $(KILLS),--kills $(KILLS))

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

# make demo    five tasks in a row, in about two minutes
# make test    what CI runs: ruff, mypy, pytest on two cores
# make bench   speed and scale against named peers, twenty minutes; BACKBONE=folder of a ViT-Ti/16
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test bench format clean

demo: .venv/installed
	$(BIN)/remember demo

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

BENCHMARKS := mixed_batch prediction training_step router_fitting prefix_cache many_tasks
bench: .venv/installed
	mkdir -p runs/bench
	for name in $(BENCHMARKS); do \
	  OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/$$name.py $(if $(BACKBONE),--backbone $(BACKBONE)) \
	    --json runs/bench/$$name.json || exit 1; \
	done

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

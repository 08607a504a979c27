# make demo          five tasks in a row, in about two minutes
# make quick         while working: ruff, mypy, import contract, unit tests; under two minutes
# make test          everything, with bounded versions of the long reliability tests
# make reliability   the long versions of the reliability tests
# make bench         speed and scale against named peers; BACKBONE=folder of a ViT-Ti/16
PYTHON ?= python3
BIN := .venv/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo quick test reliability lint bench format audit sbom clean

demo: .venv/installed
	$(BIN)/remember demo

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

quick: lint
	$(PYTEST) -m unit

test: lint
	$(PYTEST)

reliability: .venv/installed
	REMEMBERING_LONG=1 $(PYTEST) -m reliability

BENCHMARKS := mixed_batch prediction training_step router_fitting token_cache many_tasks
bench: .venv/installed
	mkdir -p runs/bench
	for name in $(BENCHMARKS); do \
	  OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/$$name.py $(if $(BACKBONE),--backbone $(BACKBONE)) \
	    --json runs/bench/$$name.json || exit 1; \
	done

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Known vulnerabilities of the pinned packages; needs the advisory database.
audit: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

# A software bill of materials of the installed environment, in CycloneDX format.
sbom: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check cyclonedx-bom
	$(BIN)/cyclonedx-py environment .venv --output-file sbom.json

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis dist sbom.json

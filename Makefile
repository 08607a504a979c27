# make demo          five tasks in a row, in about two minutes
# make quick         while working: ruff, mypy, import contract, unit tests; under two minutes
# make test          everything, with bounded versions of the long reliability tests
# make reliability   longer versions of the reliability tests; make reliability-full: the complete ones
# make fuzz          coverage-guided fuzzing of everything that reads untrusted files; SECONDS=60 each
# make docs          the documentation site, in site/; make notebooks: the outputs of its notebooks
# make results       docs/results.md, the tables of the README and their figures, from the records in results/
# make bench         speed and scale against named peers; BACKBONE=folder of a ViT-Ti/16
PYTHON ?= python3
BIN := .venv/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo quick test reliability reliability-full fuzz lint docs notebooks results bench format audit sbom clean

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

# Every crash point, 30 kills, 5,000 requests, two minutes of fuzzing per target.
reliability-full: .venv/installed
	REMEMBERING_LONG=full $(PYTEST) -m reliability

SECONDS ?= 60
fuzz: .venv/installed
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(SECONDS) $(TARGETS)

docs: .venv/installed
	$(BIN)/python scripts/build_site.py

notebooks: .venv/installed
	$(BIN)/python scripts/run_notebooks.py

results: .venv/installed
	$(BIN)/remember report results --markdown docs/results.md --intro docs/results-intro.md --readme README.md --figures docs/figures

BENCHMARKS := mixed_batch prediction training_step router_fitting token_cache many_tasks serving
bench: .venv/installed
	mkdir -p runs/bench
	for name in $(BENCHMARKS); do \
	  OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/$$name.py $(if $(BACKBONE),--backbone $(BACKBONE)) \
	    --json runs/bench/$$name.json || exit 1; \
	done

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Tools that are not part of the test environment have one of their own.
.venv/tools/installed: .venv/installed
	$(BIN)/python -m venv .venv/tools
	.venv/tools/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  pip-audit==2.10.1 cyclonedx-bom==7.5.0
	touch $@

# Known vulnerabilities of the pinned packages; fails, and says so, if the database is not reachable.
audit: .venv/tools/installed
	$(BIN)/python scripts/audit.py .venv/tools/bin/pip-audit constraints.txt

# A software bill of materials of the test environment, in CycloneDX format.
sbom: .venv/tools/installed
	.venv/tools/bin/cyclonedx-py environment $(BIN)/python --output-file sbom.json

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis dist site sbom.json

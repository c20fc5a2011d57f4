# make demo                 install what the command needs, learn from a synthetic video, write a report
# make check                lint, types and import contracts
# make test                 all tests but those on real data, one worker per core
# make test-data DATA=folder  tests on real data, with small versions of all experiments
# make test-ray             tests of fleets on Ray; installs ray (240 MB) first
# make bench                benchmarks, compared with other packages
# make results DATA=folder  all experiments, for docs/results.md
# make constraints          write constraints.txt: exact versions of what pyproject.toml names
VENV := .venv
PY := $(VENV)/bin/python
# Modules are compiled to bytecode when they are imported first: most of them never are.
PIP := -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
READY := $(VENV)/.ready
DEVELOP := $(VENV)/.develop

# Keeping bytecode makes every process start faster; some containers switch it off.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-data test-ray check bench results constraints clean

# What the command needs. torch is installed first and pinned exactly: a looser requirement downloads
# gigabytes of CUDA.
TORCH := $(shell grep '^torch==' constraints.txt)
$(READY): pyproject.toml constraints.txt
	@echo "Installing pinned dependencies into $(VENV); this takes a few minutes the first time."
	python3 -m venv $(VENV)
	$(PY) $(PIP) $(TORCH) hatchling editables
	$(PY) $(PIP) --no-build-isolation -e .
	touch $@

# What tests and checks need besides. Tests run in parallel, so the loops are compiled before.
$(DEVELOP): $(READY)
	$(PY) $(PIP) --no-build-isolation -e '.[dev]'
	$(PY) -m ullayers.kernels
	touch $@

demo: $(READY)
	$(VENV)/bin/ul demo --force

# There is one worker per core: threads of libraries would wait for each other in loops. Workers of
# Ray use one thread, and tables are compared with theirs byte by byte.
test test-data test-ray: export OMP_NUM_THREADS = 1
test test-data test-ray: export OPENBLAS_NUM_THREADS = 1
test test-data test-ray: export OPENCV_FOR_THREADS_NUM = 1

test: $(DEVELOP)
	$(PY) -m pytest --numprocesses auto --dist worksteal -m "not data"

test-data: $(DEVELOP)
	ULLAYERS_DATA=$(DATA) $(PY) -m pytest tests --numprocesses auto --dist worksteal -m data

$(VENV)/.ray: $(DEVELOP)
	$(PY) $(PIP) --no-build-isolation -e '.[ray]'
	touch $@

test-ray: $(VENV)/.ray
	$(PY) -m pytest tests/output/test_fleet.py tests/cli/test_fleet.py

check: $(DEVELOP)
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

$(VENV)/.peers: $(DEVELOP)
	$(PY) $(PIP) --no-build-isolation -e '.[peers]'
	touch $@

bench: $(VENV)/.peers
	mkdir -p experiments/out
	$(PY) -m experiments.bench all --json experiments/out/bench.json --plots experiments/out
	$(PY) -m experiments.studies.closed_form

results: $(DEVELOP)
	$(PY) -m experiments all --data $(DATA) --out docs --force

# Versions that constraints.txt has already are kept; delete lines first to take newer ones.
PINNED := build/constraints
constraints:
	rm -rf $(PINNED)
	python3 -m venv $(PINNED)
	$(PINNED)/bin/python $(PIP) $(TORCH) hatchling editables
	$(PINNED)/bin/python $(PIP) --no-build-isolation -e .
	$(PINNED)/bin/pip freeze --all --exclude pip --exclude torch --exclude-editable >$(PINNED)/users
	$(PINNED)/bin/python $(PIP) --no-build-isolation -e '.[dev,ray,peers]'
	$(PINNED)/bin/pip freeze --all --exclude pip --exclude torch --exclude-editable >$(PINNED)/all
	grep -vxFf $(PINNED)/users $(PINNED)/all >$(PINNED)/developers
	( echo '# Written by `make constraints`: exact versions. What the command needs:' && \
	  echo '$(TORCH)' && cat $(PINNED)/users && \
	  echo '# What developers need besides:' && cat $(PINNED)/developers ) >$(PINNED)/constraints.txt
	mv $(PINNED)/constraints.txt .

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis

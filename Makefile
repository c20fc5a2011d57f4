# make demo                 learn from a synthetic video and write a report
# make check                lint, types and import contracts
# make test                 all tests but those on real data, one worker per core
# make test-data DATA=folder  tests on real data, with small versions of all experiments
# make test-ray             tests of fleets on Ray; installs ray and pyarrow (410 MB) first
# make bench                benchmarks, compared with other packages
# make results DATA=folder  all experiments, for docs/results.md
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready

# Keeping bytecode makes every process start faster; some containers switch it off.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-data test-ray check bench results clean

# torch is installed first and pinned exactly: a looser requirement downloads gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	@echo "Installing pinned dependencies into $(VENV); this takes a few minutes the first time."
	python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	$(PY) -m ullayers.kernels # compiles the loops
	touch $@

demo: $(READY)
	$(VENV)/bin/ul demo --force

# There is one worker per core: threads of libraries would wait for each other in loops. Workers of
# Ray use one thread, and tables are compared with theirs byte by byte.
test test-data test-ray: export OMP_NUM_THREADS = 1
test test-data test-ray: export OPENBLAS_NUM_THREADS = 1
test test-data test-ray: export OPENCV_FOR_THREADS_NUM = 1

test: $(READY)
	$(PY) -m pytest --numprocesses auto --dist worksteal -m "not data"

test-data: $(READY)
	ULLAYERS_DATA=$(DATA) $(PY) -m pytest tests --numprocesses auto --dist worksteal -m data

$(VENV)/.ray: $(READY)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,ray]'
	touch $@

test-ray: $(VENV)/.ray
	$(PY) -m pytest tests/output/test_fleet.py tests/cli/test_fleet.py

check: $(READY)
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

$(VENV)/.peers: $(READY)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,peers]'
	touch $@

bench: $(VENV)/.peers
	mkdir -p experiments/out
	$(PY) -m experiments.bench all --json experiments/out/bench.json --plots experiments/out
	$(PY) -m experiments.studies.closed_form

results: $(READY)
	$(PY) -m experiments all --data $(DATA) --out docs --force

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

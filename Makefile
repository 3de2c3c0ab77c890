# Every target sets up what it needs: a virtual environment with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One thread a process: tests run in parallel, and ratios of times need it.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.PHONY: help demo test test-isa test-long lint bench stress docs clean

help: ## Show what can be made.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY) ## Learn a value function with error bars, beside Adam: a table and pictures in demo/.
	$(BIN)/kova demo --out demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## Ruff, mypy and the tests.
	$(BIN)/pytest -n auto -m "not slow"

# The tests whose numbers depend on how a processor rounds, with other instructions and other threads.
NUMERICS := $(addprefix tests/test_,exact.py theorems.py rounding.py bounded.py calibration.py kronecker.py head.py ktd.py ktd_state.py gptd.py gptd_chains.py gptd_input.py kfac.py kfac_state.py)
test-isa: $(READY) ## The numerics with plain instructions, with AVX2, with MKL's compatible ones, and with two threads.
	ATEN_CPU_CAPABILITY=default $(BIN)/pytest -n auto -m "not slow" $(NUMERICS)
	ATEN_CPU_CAPABILITY=avx2 $(BIN)/pytest -n auto -m "not slow" $(NUMERICS)
	MKL_CBWR=COMPATIBLE $(BIN)/pytest -n auto -m "not slow" $(NUMERICS)
	OMP_NUM_THREADS=2 MKL_NUM_THREADS=2 $(BIN)/pytest -m "not slow" tests/test_exact.py tests/test_rounding.py

test-long: $(READY) ## The tests that take minutes.
	$(BIN)/pytest -m slow

bench: $(READY) ## Speed, as ratios to Adam and to BLAS measured in the same run.
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.lab
	$(BIN)/python -m benchmarks.sb3

stress: $(READY) ## A million updates of the bounded filters; prints the extremes.
	$(BIN)/python -m benchmarks.stress

docs: $(READY) ## The documentation, in docs/_build/html.
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

clean: ## Remove the virtual environment and what was built.
	rm -rf $(VENV) docs/_build docs/gallery demo build dist

# Every verb a user has. `make` alone lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= dev
STAMP := $(VENV)/.stamp
PARITY ?=
GATE ?=
BASE ?=
BENCH ?=
A ?=
B ?=
AB ?=
GOLDEN ?=
PROVE ?=
WORKERS ?= auto
LINT = $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/python tests/support/type_check.py && \
	if command -v actionlint > /dev/null; then actionlint; fi

.DEFAULT_GOAL := help
CUDA_TESTS := tests/ptx tests/cpu/model/test_float_model.py tests/sim/test_stream_scratch.py \
	tests/sim/test_simulator_instructions.py

.PHONY: help parity parity-full parity-aarch64 prove warm test cuda golden gate ab timing gpu evidence bench lint clean

# The NumPy arithmetic multiplies small matrices: BLAS threads gain nothing there and fight with the kernels' own and with
# the test workers. `bench` compares with NumPy and leaves its threads alone.
parity parity-full prove test cuda golden gate ab: export OPENBLAS_NUM_THREADS := 1

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The environment is made when it is missing or older than pyproject.toml. A machine with an NVIDIA driver gets the CUDA
# extra that fits the driver; without one nothing of CUDA is installed.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Python 3.11 or newer is needed, {v[0]}.{v[1]} found: make PYTHON=...")'
	@echo "making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	@extras=$(EXTRAS); cuda=$$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p'); \
	case "$$cuda" in 12|13) extras=$$extras,cuda$$cuda,bench;; esac; \
	echo "installing qsa-parity[$$extras]"; \
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[$$extras]"
	@touch $@

parity: $(STAMP)  ## hold the kernels to the reference and the goldens, and a few texts; on the GPU where there is one
	@$(BIN)/qsa env
	@$(BIN)/qsa parity $(PARITY) --json build/parity/report.json

parity-full: $(STAMP)  ## the same with every case: on two cores half an hour and more
	@$(BIN)/qsa env
	@$(BIN)/qsa parity --full $(PARITY) --json build/parity/report.json

warm: $(STAMP)  ## compile the CPU kernels ahead, in parallel processes
	@$(BIN)/qsa warm

parity-aarch64: $(STAMP)  ## hold the kernels to the goldens on AArch64, emulated where this machine is none (needs Debian, qemu-user)
	@BIN=$(BIN) .ci/aarch64 $(PARITY)

prove: $(STAMP)  ## put wrong kernels under the suite, every one must be caught; report in build/prove; PROVE=--sample is short
	@$(BIN)/qsa prove $(PROVE) --json build/prove/report.json --junit build/prove/junit.xml

test: $(STAMP)  ## lint, then all tests that this machine can run
	@$(BIN)/qsa env
	@$(LINT)
	@$(BIN)/pytest -n $(WORKERS)

# A skip is no success here: without the wheels nothing is started.
cuda: $(STAMP)  ## run the tests that need the CUDA wheels and no GPU: VENV=.venv-cuda EXTRAS=dev,cuda12
	@$(BIN)/python -c 'import sys; from importlib.util import find_spec; from qsa.kernels.cuda.ptxcheck import check; sys.exit(None if find_spec("numba_cuda") and find_spec("cupy") and check.find_ptxas() else "the CUDA wheels are missing: make cuda VENV=.venv-cuda EXTRAS=dev,cuda12 (or cuda13)")'
	@$(BIN)/pytest -n $(WORKERS) $(CUDA_TESTS)

gate: $(STAMP)  ## say whether a change may land; speed against the commit BASE, else the merge base; report in build/gate
	@$(BIN)/qsa env
	@$(BIN)/qsa gate $(GATE) $(if $(BASE),--base $(BASE)) \
		--json build/gate/report.json --junit build/gate/junit.xml --markdown build/gate/report.md --html build/gate/report.html

ab: $(STAMP)  ## two settings side by side, the tables of a change proposal: make ab A="" B="STRATA_QSA_SPLIT_ATTN=1"; report in build/ab
	@$(BIN)/qsa ab --a "$(A)" --b "$(B)" $(AB) --json build/ab/report.json --markdown build/ab/report.md

timing: $(STAMP)  ## the tests that measure time, which run alone: the gate finds a kernel that is slowed by 30 %
	@$(BIN)/pytest -n 0 -m timing

gpu: $(STAMP)  ## run everything on this machine's GPU and record it in golden/evidence
	@$(BIN)/qsa env
	@$(BIN)/qsa evidence run

evidence: $(STAMP)  ## say whether the records in golden/evidence speak of today's kernels: fresh or stale
	@$(BIN)/qsa evidence check

bench: $(STAMP)  ## time the kernels beside the limits of the machine: BENCH='--against file.py', BENCH=--tables
	@$(BIN)/qsa env
	@$(BIN)/qsa bench $(BENCH) $(if $(findstring --tables,$(BENCH)),,--json build/bench/report.json --html build/bench/report.html)
	@$(if $(BENCH),,$(BIN)/python -m qsa.parity.bench.cuda_layer)
	@$(if $(BENCH),,$(BIN)/python -m qsa.parity.bench.engine)

golden: $(STAMP)  ## hold every golden to the reference; GOLDEN=--fresh computes again what was computed before
	@$(BIN)/qsa env
	@$(BIN)/qsa golden check $(GOLDEN)

lint: $(STAMP)  ## ruff: lint and format; mypy: types
	@$(LINT)

clean:  ## remove the environment, reports and caches
	rm -rf $(VENV) .venv-cuda build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	git worktree prune 2>/dev/null || true

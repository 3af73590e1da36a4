# SPDX-License-Identifier: Apache-2.0
# Every target first sees to it that .venv is complete, which takes no time when it is.

# Starts the set-up alone; it needs Python 3.11 or newer: make setup PYTHON=python3.11
PYTHON ?= python3
# The release whose test suite `make conformance` runs: 0.32.0 or 0.33.0.
VLLM ?= 0.32.0

BIN := .venv/bin

.PHONY: setup demo test lint conformance bench parity clean

setup:
	@$(PYTHON) benchmarks/environment.py

demo: setup
	@$(BIN)/python -m benchmarks.demo

test: lint
	$(BIN)/python -m pytest tests -n 2 --dist loadfile

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

conformance: setup
	$(BIN)/python tests/conformance/run.py --vllm $(VLLM)

bench: setup
	$(BIN)/python -m benchmarks.micro

parity: setup
	$(BIN)/python -m benchmarks.parity
	$(BIN)/python -m benchmarks.parity --stress --limit 40

# .cache holds the converted model and vLLM's source distributions: made anew on demand.
clean:
	rm -rf .venv .cache build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

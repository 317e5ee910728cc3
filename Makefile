# SPDX-License-Identifier: Apache-2.0
# On a fresh machine `make demo` and `make test` are enough: each does all the set-up it needs.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
SHELL  := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
export PYTHONUNBUFFERED := 1

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMP): pyproject.toml setup.py
	@tools/venv.sh "$(PYTHON)" "$(VENV)"
	@touch $@

.PHONY: setup
setup: $(STAMP) ## Make the virtual environment with everything that is needed

.PHONY: demo
demo: setup ## The main job on a real Kubernetes on this machine: claim a GPU, see it in a container
	@$(BIN)/python -m tools.demo $(ARGS)

.PHONY: demo-managed
demo-managed: setup ## A day of two teams: whole cards held apart, against shares and lending queues
	@$(BIN)/python -m tools.twoteams.cluster $(ARGS)

.PHONY: test
test: setup ## Unit, table and integration tests, then end to end on the local cluster
	@$(BIN)/python -m tools.run_tests

.PHONY: unit
unit: setup ## Only what needs no cluster (fast)
	@$(BIN)/pytest -q $(ARGS)

.PHONY: e2e
e2e: setup ## Only the end-to-end tests; brings the local cluster up
	@$(BIN)/python -m tools.run_tests --only e2e $(ARGS)

.PHONY: fuzz
fuzz: setup ## Long differential runs of the allocator and CEL against upstream's
	@$(BIN)/python -m tests.fuzz.cel --count 5000
	@$(BIN)/python -m tests.fuzz.allocator --count 20000

.PHONY: lint
lint: setup ## ruff, and the contract between the layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --cache-dir .cache/import-linter

.PHONY: fmt
fmt: setup ## Format the code and mend what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: types
types: setup ## mypy, strict
	@tools/types.sh "$(BIN)"

.PHONY: bench
bench: bench-edges bench-plugin bench-cel bench-allocator bench-placement ## All benches, one after the other

.PHONY: bench-plugin
bench-plugin: setup ## Prepare and unprepare latency, memory
	@$(BIN)/python -m tests.bench.bench_plugin $(ARGS)

.PHONY: bench-edges
bench-edges: setup ## What objects, imports, watches and slices cost, beside the official client
	@for name in objects imports watch slices fabric; do $(BIN)/python -m tests.bench.bench_$$name; done

.PHONY: bench-cel
bench-cel: setup ## CEL selectors beside upstream's Go environment
	@$(BIN)/python -m tests.bench.bench_cel $(ARGS)

.PHONY: bench-allocator
bench-allocator: setup ## Our allocator beside upstream's over the same cases
	@$(BIN)/python -m tests.bench.bench_allocator $(ARGS)

.PHONY: bench-placement
bench-placement: setup ## Placement policies on the public openb trace
	@$(BIN)/python -m tests.bench.bench_placement $(ARGS)

.PHONY: bench-managed-plan
bench-managed-plan: setup ## Managed mode's planning alone, beside KAI's published figures
	@$(BIN)/python -m tests.bench.bench_managed_plan $(ARGS)

.PHONY: bench-managed
bench-managed: setup ## Managed mode: pods a second beside kube-scheduler
	@$(BIN)/python -m tests.bench.bench_managed $(ARGS)

.PHONY: simulate
simulate: setup ## Managed mode under random work and trouble: 100 fresh seeds, long (ARGS="--seeds 5 --steps 500")
	@$(BIN)/python -m tests.simulation $(ARGS)

.PHONY: cluster-up
cluster-up: setup ## Start a real Kubernetes on this machine (first time: builds it, about 16 minutes)
	@$(BIN)/gpudra local up $(ARGS)

.PHONY: cluster-down
cluster-down: setup ## Stop it and leave nothing running
	@$(BIN)/gpudra local down $(ARGS)

.PHONY: image
image: setup ## Write gpudra-image.tar: an image of this machine's Python, without a container builder
	@$(BIN)/python -m tools.image $(ARGS)

.PHONY: clean
clean: ## Stop the local cluster and remove everything that was made here
	@if [ -x $(BIN)/gpudra ]; then $(BIN)/gpudra local down --purge || true; fi
	rm -rf $(VENV) .cache .local build dist gpudra-image.tar *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Every target works on a bare clone: it makes .venv from the lock first. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help demo test services lint sbom bench bench-full torture docs lock clean environment

export PYTHON
RUN := .venv/bin
# The folders that exist, so that each target works from the first day.
CHECKED := $(wildcard src tests benchmarks examples scripts/*.py)

help: ## Show this list
	@echo "Penstock: an event bus and a crash-safe durable log for Python."
	@echo
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' \
	    | awk -F'|' '{ printf "  make %-10s %s\n", $$1, $$2 }'
	@echo
	@echo "  make test ARGS='-k recovery -x' passes arguments on. make PYTHON=python3.13 chooses Python."

demo: environment ## The tour, under three minutes: kills, failing handlers, pressure, Spark to tables, a summary (FAST=1: no Spark)
	@$(RUN)/python -m examples.tour $(if $(FAST),--fast) $(ARGS)

# One process more than there are cores, as many tests wait for servers; four at most.
JOBS ?= $(shell cores=$$(nproc); echo $$(( cores < 4 ? cores + 1 : 4 )))
test: environment ## Run the tests (under half an hour); gets what they run against first, where that is possible
	@scripts/system-packages
	@scripts/services
	@echo "Running the tests ..."
	@$(RUN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

services: environment ## Get the brokers that the transports are tested against: Redis, RabbitMQ, Kafka, Pulsar
	@scripts/services
	@echo "Services: done."

lint: environment ## Check format, style, types and known weaknesses; writes what it is made of into build/sbom.json
	@echo "Checking format (ruff), style and security (ruff, with the rules of bandit) and types (mypy) ..."
	@$(RUN)/ruff format --quiet --diff $(CHECKED)
	@$(RUN)/ruff check --quiet $(CHECKED)
	@$(RUN)/mypy --no-error-summary $(CHECKED)
	@scripts/audit
	@$(RUN)/python scripts/sbom.py build/sbom.json
	@echo "Lint: no complaints."

sbom: environment ## Write what Penstock with all extras is made of (CycloneDX) into build/sbom.json
	@$(RUN)/python scripts/sbom.py build/sbom.json
	@echo "Written: build/sbom.json"

bench: environment ## Measure beside the peers, quickly (half an hour); prints tables; JSON, pages and plots go to benchmarks/results
	@scripts/peers
	@echo "Measuring ..."
	@$(RUN)/python -m benchmarks --quick $(ARGS); ended=$$?; \
	    $(RUN)/python -m benchmarks.summary benchmarks/results && exit $$ended

bench-full: environment ## Measure everything beside all peers, with care (hours); fills docs/benchmarks
	@scripts/system-packages
	@scripts/services
	@scripts/peers
	@echo "Measuring; this takes hours. ARGS='--suite durable' measures one suite ..."
	@$(RUN)/python -m benchmarks --full --json docs/benchmarks $(ARGS); ended=$$?; \
	    $(RUN)/python -m benchmarks.summary && $(RUN)/python -m benchmarks.guard --time && exit $$ended

# The scoreboard of a run: where its figures go. PAGE=1 puts them into docs/reliability.md too.
SCOREBOARD ?= build/scoreboard
torture: environment ## Run the long tests (hours): kills, power cuts, crash states; ends with the scoreboard
	@scripts/system-packages
	@scripts/services
	@scripts/peers
	@echo "Running the long tests; this takes hours. PENSTOCK_SEED=... repeats a run ..."
	@rm -rf $(SCOREBOARD)
	@HYPOTHESIS_PROFILE=torture PENSTOCK_SCOREBOARD=$(SCOREBOARD) \
	    $(RUN)/python -m pytest -m torture --timeout 14400 $(ARGS); ended=$$?; page=$(if $(PAGE),--page); \
	    if [ "$$page" ] && [ $$ended -ne 0 ]; then page=; echo "Tests failed: docs/reliability.md stays as it was."; fi; \
	    $(RUN)/python -m tests.scoreboard $(SCOREBOARD) $$page || ended=1; \
	    echo "The figures of this run: $(abspath $(SCOREBOARD))/scoreboard.json"; exit $$ended

docs: environment ## Build the documentation site into site/
	@echo "Building the documentation ..."
	@NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict --clean
	@echo "Documentation: built into site/"

lock: environment ## Resolve the dependencies again into requirements/*.txt (ARGS=--upgrade for newer ones)
	@echo "Locking ..."
	@scripts/lock $(ARGS)
	@scripts/environment
	@echo "Locked: requirements/uv.txt and requirements/dev.txt"

clean: ## Remove everything that make has made
	@rm -rf .venv build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
	@echo "Clean."

environment:
	@scripts/environment

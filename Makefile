# Every target sets up what it needs; only python3 (3.11 to 3.13) and a package registry are required.
# To use another Python: make test PYTHON=python3.12. pip's own index settings apply to uv too.

.NOTPARALLEL:
.DEFAULT_GOAL := help
SHELL := /bin/bash
# Set-up targets must not be left incomplete.
.DELETE_ON_ERROR:
# Without bytecode, every process compiles torch anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := requirements/constraints.txt
OUT ?= demo-out
UV_PIN := uv==0.13.8

SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
# The first of these that is a supported Python.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo $$p; exit; }; done)

# uv does not read pip's configuration, so the index and the certificates are passed on (not extra indexes and
# find-links: they may hold other builds of the pinned versions).
define RUN_UV
index="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$($(BIN)/python -m pip config get global.index-url 2>/dev/null || true)}}"; \
[ -z "$$index" ] || export UV_DEFAULT_INDEX="$$index"; \
[ -n "$$SSL_CERT_FILE" ] || [ -z "$$PIP_CERT" ] || export SSL_CERT_FILE="$$PIP_CERT"; \
$(BIN)/uv
endef
UV_INSTALL = @echo "installing into $(VENV) (the first time takes a few minutes)"; \
	$(RUN_UV) pip install --compile-bytecode --python $(BIN)/python --constraint $(CONSTRAINTS)

.PHONY: help demo test test-long check format docs site release screenshots pretrain bench bench-gpu zoo study pins clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

demo: $(VENV)/.run ## Adapt the tiny CLIP with DeAR, offline, and write demo-out/report.html
	$(BIN)/dear demo --out $(OUT)

# Two processes, each of which takes tests from the other when it has no more; ARGS="-n 0" for a single one.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
test: $(VENV)/.dev ## Run the tests that guard every behavior (5 minutes on 2 cores)
	$(PYTEST) -m "not long" $(ARGS)

test-long: $(VENV)/.dev ## Run the other tests: each method and backbone exported, pages run, more kills
	$(PYTEST) -m long $(ARGS)

check: $(VENV)/.dev ## Run linter, formatter, type checker, import rules, spelling, docs, sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m tools.generate_docs --check
	$(BIN)/python -m pytest -q tests/checks

format: $(VENV)/.dev ## Format the code and fix what the linter can
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

docs: $(VENV)/.dev ## Regenerate docs/cli.md and the table of limits
	$(BIN)/python -m tools.generate_docs

# Needs neither torch nor the package: docstrings are read from the source.
site: $(VENV)/.site ## Build the documentation site, site/index.html, and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "look at it: $(BIN)/mkdocs serve, or open site/index.html"

release: $(VENV)/.dev ## Build the wheel and the source archive in dist/, check them, try the wheel alone
	rm -rf dist
	$(RUN_UV) build
	$(RUN_UV) tool run twine check --strict dist/*
	$(PYTEST) -n 0 tests/e2e/test_wheel.py

screenshots: $(VENV)/.dev ## Make the pictures of the page (of PHOTOS, a folder of folders) and of the report, with chromium
	$(BIN)/python docs/images/make_screenshots.py "$(PHOTOS)"

# The three runs that produced the package's weights; src/dear/backbone/tiny/README.md has their details.
LATE := --late 3 --restart 0 --emphasis color,texture --no-bf16
pretrain: $(VENV)/.run ## Retrain the tiny CLIP (hours on a CPU); resumes where it stopped
	$(BIN)/python -m tools.pretrain --out pretrained/first
	$(BIN)/python -m tools.pretrain --out pretrained/late --start pretrained/first $(LATE) \
	  --images 320000 --lr 8e-4 --warmup 200 --seed 11
	$(BIN)/python -m tools.pretrain --out pretrained/heads --start pretrained/late $(LATE) --late-mlp 3 \
	  --images 81920 --lr 5e-4 --warmup 50 --seed 12

bench: $(VENV)/.dev ## Run the small benchmarks (5 minutes on 2 cores) and write their tables into the pages
	$(BIN)/python benchmarks/train_step.py --classes 50 --repeats 2 --out benchmarks/results/train_step_small.json
	$(BIN)/python benchmarks/predict.py --batch 16 --repeats 4 --out benchmarks/results/evaluate.json
	$(BIN)/python benchmarks/table.py

zoo: $(VENV)/.dev ## Try dear fit on public pictures of others (10 minutes, 200 MB to download) and write its table
	$(BIN)/python -m benchmarks.zoo
	$(BIN)/python benchmarks/table.py

# Parts of the study: recipes of recipes/study, the readings of recipes/world, and dear+ with other roles.
ONLY ?= small large few-shot classes dear readings roles
study: $(VENV)/.dev ## Make the runs of the study (a night on 2 cores; ONLY="classes roles" for parts) and write its numbers
	for part in $(ONLY); do \
	  case $$part in \
	    readings) recipe=recipes/world/readings.yaml ;; \
	    roles) recipe=runs/study/roles/recipe.yaml; $(BIN)/python -m benchmarks.study.controls runs/study/roles ;; \
	    *) recipe=recipes/study/$$part.yaml ;; \
	  esac; \
	  $(BIN)/dear run recipe $$recipe --jobs 2 || exit; \
	done
	$(BIN)/python -m benchmarks.study $(if $(filter readings,$(ONLY)),runs/world/readings) \
	  $(if $(filter-out readings,$(ONLY)),runs/study)

RESULTS := benchmarks/results
bench-gpu: $(VENV)/.dev ## Test and measure on an NVIDIA GPU (some minutes) and write the tables into the pages
	$(BIN)/python -m pytest -q tests/gpu
	$(BIN)/python benchmarks/predict.py --device cuda --batch 250 --bf16 --repeats 10 --out $(RESULTS)/evaluate_gpu.json
	$(BIN)/python benchmarks/train_step.py --device cuda --out $(RESULTS)/train_step_gpu.json
	$(BIN)/python benchmarks/table.py

pins: $(VENV)/.dev ## Regenerate the pinned versions
	@{ sed -n '/^#/p' $(CONSTRAINTS); \
	  $(RUN_UV) pip compile --quiet --universal --upgrade --all-extras --group docs --python-version 3.11 \
	    --no-header --no-annotate pyproject.toml | grep -Ev '^(cuda-|nvidia-|triton)'; } > $(CONSTRAINTS).new
	mv $(CONSTRAINTS).new $(CONSTRAINTS)

clean: ## Remove the environment, the caches and the demo's output
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist site demo-out zoo
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment with uv in it.
$(VENV)/.uv:
	@[ -n "$(PYTHON)" ] || { \
	  echo "dear needs Python 3.11 to 3.13, but none is on the path ($$(python3 --version 2>&1))." >&2; \
	  echo "Install one, or specify it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c '$(SUPPORTED)' || { \
	  echo "dear needs Python 3.11 to 3.13; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet '$(UV_PIN)'
	@touch $@

# What the package, its page, ONNX and photos of phones need.
$(VENV)/.run: $(VENV)/.uv pyproject.toml $(CONSTRAINTS)
	$(UV_INSTALL) --editable '.[app,export,photos]'
	@touch $@

# What development needs in addition.
$(VENV)/.dev: $(VENV)/.uv pyproject.toml $(CONSTRAINTS)
	$(UV_INSTALL) --editable '.[dev]'
	@touch $(VENV)/.run $@

# What the documentation site needs.
$(VENV)/.site: $(VENV)/.uv pyproject.toml $(CONSTRAINTS)
	$(UV_INSTALL) --group docs
	@touch $@

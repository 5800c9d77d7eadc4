# `make` lists the targets. PYTHON is the interpreter that makes .venv: Python 3.10 to 3.13.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo browser test test-ray check format bench mutants picture clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

# A folder without a working pip, left by an interrupted run, is made anew.
$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' \
	  || { echo "pdenv needs Python 3.10 to 3.13; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/made $(INPUTS)
	@echo "Installing pdenv into $(VENV) ..."
	@$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/made $(INPUTS)
	@echo "Installing pdenv with training, tests and checks into $(VENV) ..."
	@$(PIP_INSTALL) --editable '.[test,dev,train]'
	@touch $(VENV)/installed $@

setup: $(VENV)/installed-dev  ## create .venv with pdenv, training, tests and checks

demo: $(VENV)/installed  ## compare schedulers at the operating point; plots go to runs/demo
	@mkdir -p runs
	$(BIN)/python -m pdenv.sim.compiled
	$(BIN)/pdenv compare operating-point --policies three-part,greedy,least-work,round-robin,colocated \
	  --windows 10 --jobs 2 --report runs/demo
	@echo "Plots and numbers:" && ls -d runs/demo/*
	@echo "The report, to open in a browser: $(CURDIR)/runs/demo/index.html"

# The report page is tested in Chromium, which is no Python package.
browser:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } > /dev/null && \
	  command -v chromedriver > /dev/null || { \
	  echo "Installing Chromium, which tests of the report page need ..."; \
	  if [ "$$(id -u)" = 0 ]; then root=; else root="sudo -n"; fi; \
	  command -v apt-get > /dev/null && $$root apt-get update -qq && $$root env DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core > /dev/null; } || \
	  echo "No Chromium: tests/test_page.py will fail. Install Chromium or Chrome, and chromedriver." >&2

test: $(VENV)/installed-dev browser  ## run every test
	$(BIN)/python -m pdenv.sim.compiled
	$(BIN)/python -m pdenv.envs.kernels
	$(BIN)/python -m pytest -n 2

# Ray pins an older Gymnasium, so it has a folder of its own.
RAY_VENV := .venv-ray
RAY_PYTHON := $(RAY_VENV)/bin/python

$(RAY_VENV)/installed: pyproject.toml constraints-ray.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
	  || { echo "The pinned Ray needs Python 3.11 to 3.13; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(RAY_PYTHON) -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(RAY_VENV)
	@echo "Installing pdenv with Ray into $(RAY_VENV) ..."
	@$(RAY_PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints-ray.txt \
	  --editable '.[test,train,ray]'
	@touch $@

test-ray: $(RAY_VENV)/installed  ## run the RLlib example, and the environments under Gymnasium 1.2
	$(RAY_PYTHON) -m pdenv.sim.compiled
	$(RAY_PYTHON) -m pdenv.envs.kernels
	$(RAY_PYTHON) -m pytest -n 2 tests/rllib.py tests/ray_compare.py tests/test_accrual.py tests/test_envs_api.py tests/test_envs_vector.py

check: $(VENV)/installed-dev  ## format, lint, types and tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

format: $(VENV)/installed-dev  ## format and repair what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/installed-dev  ## measure speed and write docs/performance.md
	$(BIN)/python benchmarks/bench.py

mutants: $(VENV)/installed-dev  ## break engine lines one at a time; a test must fail each time
	$(BIN)/python benchmarks/mutants.py

picture: demo browser  ## draw the pictures of the README again
	cp runs/demo/operating-point-leaderboard.png docs/img/leaderboard.png
	$$(command -v chromium || command -v chromium-browser || command -v google-chrome) --headless --no-sandbox \
	  --disable-gpu --hide-scrollbars --window-size=1280,1930 --virtual-time-budget=5000 \
	  --screenshot=docs/img/report.png "file://$(CURDIR)/runs/demo/index.html"

clean:  ## remove .venv, runs and caches
	rm -rf $(VENV) $(RAY_VENV) runs dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

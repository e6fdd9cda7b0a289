# Everything a contributor types. Each target makes .venv first, and again only when what it is made
# of has changed. Another interpreter: make PYTHON=python3.13 test (after rm -r .venv).

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
VERL_INSTALLED := .venv-verl/.installed

.PHONY: help setup check test test-slow test-sandbox test-trl test-verl test-browser demo bench docs site

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(INSTALLED) ## make .venv with the package and its development tools

check: $(INSTALLED) ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# A worker takes neighbouring tests, so that what a module prepares is made once.
test: $(INSTALLED) ## all tests but slow ones and those of an engine, doctests included
	$(BIN)/pytest -n auto --dist worksteal

test-slow: $(INSTALLED) ## whole runs and evaluations, killed and resumed
	$(BIN)/pytest -n auto --dist worksteal -m slow

test-sandbox: $(INSTALLED) ## what attacks the sandbox, five times over
	$(BIN)/pytest -m "" tests/sandbox/test_attacks.py --attack-rounds 5

test-trl: $(INSTALLED) ## train with TRL, in one process and two; look at its releases
	$(BIN)/pytest -m trl tests/engines tests/test_tutorials.py

test-browser: $(INSTALLED) ## explorer and report in a headless browser: clicks, drags, screenshots
	@command -v chromedriver >/dev/null || { \
		echo "no browser to test with: apt-get install chromium chromium-driver" >&2; exit 1; }
	$(BIN)/pytest -m browser tests/browser

test-verl: $(VERL_INSTALLED) ## verl's own trainer, estimators and configuration, in .venv-verl
	OMP_NUM_THREADS=1 .venv-verl/bin/pytest -m verl --confcutdir tests/engines/verl tests/engines/verl

demo: $(INSTALLED) ## train FADE and GRPO on a CPU, and write a report
	$(BIN)/gradmass demo

bench: $(INSTALLED) ## how fast: every script in benchmarks/
	@for script in $(sort $(wildcard benchmarks/*.py)); do \
		echo "$(BIN)/python $$script"; $(BIN)/python $$script || exit; done

docs: $(INSTALLED) ## write docs/weights.md, docs/which_weight.md and docs/advise_record.md anew
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/generate_record.py

site: $(INSTALLED) ## build the documentation site in site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "gradmass needs Python 3.11 or later; name one: make PYTHON=python3.13 ..." >&2; exit 1; }
	@echo "installing gradmass and its development tools in .venv, which takes minutes the first time"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e ".[dev]"
	@command -v bwrap >/dev/null || \
		echo "programs are judged in bubblewrap, which is not installed: apt-get install bubblewrap"
	@touch $@

$(VERL_INSTALLED): pyproject.toml constraints-verl.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || { \
		echo "verl needs Python 3.11 or 3.12; name one: make PYTHON=python3.12 test-verl" >&2; exit 1; }
	@echo "installing gradmass and verl in .venv-verl, which takes minutes the first time"
	$(PYTHON) -m venv .venv-verl
	@# Most of these modules are never imported, so none is compiled ahead.
	.venv-verl/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
		-r constraints-verl.txt -e .
	.venv-verl/bin/python -m pip check
	@touch $@

# Each target makes its own environment from constraints.txt: nothing else to type.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
ARGS   ?=
SITE   ?= site

.PHONY: demo test test-fast lint format docs site wheel ci clean

demo: $(READY)  ## the bundled pair: plain decoding beside every builtin pipeline
	$(BIN)/draftwood demo $(ARGS)

test: $(READY)  ## every test
	$(BIN)/pytest --numprocesses auto $(ARGS)

test-fast: $(READY)  ## without the slow tests
	$(BIN)/pytest --numprocesses auto -m "not slow" $(ARGS)

lint: $(READY)  ## style, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## rewrite what is generated in docs/ from the code
	$(BIN)/python tests/fault_kinds.py
	$(BIN)/python -m draftwood.cli.reference docs/cli.md docs/reference/pipeline.md

site: $(READY)  ## the documentation as pages in site/, which open without a web server
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir $(SITE)

wheel: $(READY)
	$(BIN)/python -m build --wheel --no-isolation

ci:  ## what a submission must pass
	bash .ci/run

clean:
	rm -rf $(VENV) build dist site

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or later is needed"'
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): about 2 GB, a minute or more"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# Each target makes its own environment from constraints.txt: nothing else to type.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
ARGS   ?=

.PHONY: demo test test-fast lint format docs wheel ci clean

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

docs: $(READY)  ## rewrite docs/cli.md from the code
	$(BIN)/python -m draftwood.cli.reference docs/cli.md

wheel: $(READY)
	$(BIN)/python -m build --wheel --no-isolation

ci:  ## what a submission must pass
	bash .ci/run

clean:
	rm -rf $(VENV) build dist

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or later is needed"'
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): about 2 GB, a minute or more"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# Everything needed is made on first use: `make demo` and `make test` work on a fresh clone.
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: demo test check docs clean

demo: $(READY)
	$(PYTHON) -m torchcaps demo

# Tests that measure time or memory come last, one after the other. They run even if others have failed.
test: $(READY)
	$(PYTHON) -m pytest -n 2 --dist worksteal -m "not alone"; others=$$?; $(PYTHON) -m pytest -m alone && exit $$others

check: $(READY)
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/pyright --pythonpath $(PYTHON)

# The site, into site/; any warning, such as a link to nowhere, is an error (strict in mkdocs.yml). Formulas and the
# playground need files from npm, which are fetched once.
docs: $(VENV)/.docs
	$(VENV)/bin/mkdocs build
	rm -rf site/playground
	$(PYTHON) -m torchcaps publish --out site/playground

$(VENV)/.docs: $(READY)
	$(PYTHON) -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $(VENV)/.docs

# constraints.txt pins torch: unpinned, pip would fetch gigabytes of GPU libraries. Debian has venv in python3-venv.
# The last step compiles the C loops.
$(READY): pyproject.toml constraints.txt hatch_build.py $(wildcard torchcaps/kernels/*.c)
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet -c constraints.txt torch
	$(PYTHON) -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) runs site .cache .pytest_cache .ruff_cache .hypothesis

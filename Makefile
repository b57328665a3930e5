# Everything needed is made on first use: `make demo` and `make test` work on a fresh clone.
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: demo test check clean

demo: $(READY)
	$(PYTHON) -m torchcaps demo

test: $(READY)
	$(PYTHON) -m pytest

check: $(READY)
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/pyright --pythonpath $(PYTHON)

# constraints.txt pins torch: unpinned, pip would fetch gigabytes of GPU libraries. Debian has venv in python3-venv.
# The last step compiles the C loops.
$(READY): pyproject.toml constraints.txt hatch_build.py $(wildcard torchcaps/kernels/*.c)
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet -c constraints.txt torch
	$(PYTHON) -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .hypothesis

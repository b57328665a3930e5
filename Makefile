# Everything needed is made on first use: `make demo` and `make test` work on a fresh clone.
VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALL := $(PYTHON) -m pip install --quiet
VERIFIED := --require-hashes --only-binary :all:
TORCH := $(VERIFIED) --no-deps -r requirements-torch.lock
READY := $(VENV)/.ready

.PHONY: demo test check docs audit clean

demo: $(READY)
	$(PYTHON) -m torchcaps demo

# Tests that measure time or memory come last, one after the other. They run even if others have failed.
test: $(READY)
	$(PYTHON) -m pytest -n 2 --dist worksteal -m "not alone"; others=$$?; $(PYTHON) -m pytest -m alone && exit $$others

check: $(READY)
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/pyright --pythonpath $(PYTHON)

# The site, into site/; any warning, such as a link to nowhere, is an error (strict in mkdocs.yml). Formulas and the
# playground need files from npm, which are fetched once.
docs: $(READY)
	$(VENV)/bin/mkdocs build
	rm -rf site/playground
	$(PYTHON) -m torchcaps publish --out site/playground

# Known vulnerabilities of everything pinned. Without --strict, pip-audit passes over what its database does not answer for.
audit:
	python3 -m venv .cache/audit
	.cache/audit/bin/python -m pip install --quiet pip-audit
	.cache/audit/bin/pip-audit --strict --disable-pip -r requirements.lock -r requirements-torch.lock

# Everything is verified by its hash (tools/lock.py writes them), except what torch's builds for GPUs need beside them, which
# the fourth line fetches; a CPU build needs nothing. A torch of this version that is there stays, and one in a folder of
# pip's (PIP_FIND_LINKS) comes before those of the index, which pip would prefer
# because it knows their hashes before it has the files.
# The last line compiles the C loops. Debian has venv in python3-venv.
$(READY): pyproject.toml requirements.lock requirements-torch.lock hatch_build.py $(wildcard torchcaps/kernels/*.[ch])
	python3 -m venv $(VENV)
	$(INSTALL) $(VERIFIED) -r requirements.lock
	$(INSTALL) $(TORCH) -qq --no-index || $(INSTALL) $(TORCH)
	$(INSTALL) -c constraints.txt torch
	$(INSTALL) --no-deps --no-build-isolation -e .
	touch $(READY)

clean:
	rm -rf $(VENV) runs site .cache .pytest_cache .ruff_cache .hypothesis

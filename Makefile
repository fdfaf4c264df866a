# The two commands are `make course` and `make test`; `make help` lists all. Each one makes or repairs .venv by itself.

JOBS ?= 2
LAB ?= 00
BIN := .venv/bin

# The newest Python that the course runs on, unless PYTHON=… names one.
VENV = @python=$$(sh scripts/find_python.sh $(1)) && "$$python" scripts/make_venv.py $(1)

# With a working environment use that, else the interpreter at hand: nothing is installed for a measurement.
MEASURE = $(shell $(BIN)/python -c "" 2>/dev/null && echo $(BIN)/python || echo $(or $(PYTHON),python3))

.DEFAULT_GOAL := help
.PHONY: help course site test test-all lab model release evidence wheels check environment test-environment peers
.NOTPARALLEL:

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

course: environment ## run and grade what has changed in the course (FRESH=1: all of it); reports/course.html
	@$(BIN)/threeloops course $(if $(FRESH),--fresh) $(ARGS)

site: test-environment ## reports/site/html/index.html: the labs as web pages, from what `make course` executed
	@$(BIN)/python -m threeloops_grader.site.build $(ARGS)

test: test-environment ## the test-suite of every change
	@$(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(ARGS)

test-all: test-environment ## the same, and the long runs
	@$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

lab: environment ## the first lab in JupyterLab, in your own copy (another one: make lab LAB=03)
	@$(BIN)/threeloops lab $(LAB) -- $(ARGS)

model: environment ## train the models that the product loop serves: about a quarter of an hour on two cores
	@$(BIN)/python -m threeloops.product.trained $(ARGS)

release: environment ## generate labs/ from solutions/
	@$(BIN)/threeloops release

evidence: ## measure this machine; call it until nothing is left (ARGS="--part numbers")
	@PYTHONPATH="lib:grader:.:$$PYTHONPATH" $(MEASURE) -m threeloops_grader.cli evidence $(ARGS)

wheels: environment ## wheels/: what a machine without a network needs (make wheels FOR=3.12)
	@$(BIN)/python scripts/make_wheels.py wheels $(FOR)

check: test-environment ## style, types, labs/ against solutions/, and answers that can be copied
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/threeloops release --check
	@$(BIN)/threeloops leaks --jobs $(JOBS)

environment:
	$(call VENV,.venv) requirements.txt --editable

test-environment:
	$(call VENV,.venv) requirements.txt requirements-test.txt --editable

peers: ## .venv-peers: other graders, for benchmarks that compare
	$(call VENV,.venv-peers) requirements-peers.txt

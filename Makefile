# make demo     extract JSON from the sample documents with the bundled model and write report.html
# make test     lint, types and tests
# The rest is for people who work on decodekit; `make help` lists it.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test lint types compiled pytest test-slow test-gpu fuzz fuzz-tests fuzz-schemas fuzz-traffic bench bench-gpu gpu-kit bench-masks bench-grammars bench-forced bench-forwards bench-closing bench-constrained bench-defaults bench-first-use bench-speculation bench-beams bench-attention bench-sampler notebooks docs package architectures templates train clean bench-prefixes bench-batching bench-cache bench-custom-generate bench-soak bench-stalls bench-peers options

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "decodekit needs Python 3.11 or newer; run: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP)  ## make the virtual environment and install decodekit into it

demo: $(STAMP)  ## extract JSON from the sample documents with the bundled model
	$(BIN)/decodekit demo

test: lint  ## lint, types and tests
	@$(MAKE) --no-print-directory -j2 types compiled
	@$(MAKE) --no-print-directory pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# What both workers would do for themselves: kernels are compiled.
compiled: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.compiled

# Without bytecode on disk, every process that a test starts compiles the package, and every worker all tests.
pytest compiled: export PYTHONDONTWRITEBYTECODE =

# Each worker runs torch on one thread: two that share two cores with all their threads wait for one another.
PYTEST_WORKERS ?= 2
PYTEST_ARGS    ?=
pytest: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadfile --durations=10 $(PYTEST_ARGS)

test-slow: $(STAMP)  ## the long checks as well: corpora, many documents, large vocabularies
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist worksteal -m 'slow and not gpu' \
		--timeout 3600 --durations=40 $(PYTEST_ARGS)

# With the python that is there: a machine with a GPU may have no network for an environment.
test-gpu:  ## the checks that need a CUDA device, with PYTHON as it is
	$(PYTHON) -m pytest -n 8 -q -m gpu tests/gpu/test_on_gpu.py

FUZZ_ROUNDS  ?= 20
FUZZ_MINUTES ?= 30
fuzz: fuzz-tests fuzz-schemas fuzz-traffic  ## what no fixed example shows: tests with other seeds, random JSON Schemas and requests

fuzz-tests: $(STAMP)  ## the tests that draw, with FUZZ_ROUNDS=20 other seeds; CHANCE_ARGS="--seed 1"
	$(BIN)/python -m tests.chance --rounds $(FUZZ_ROUNDS) $(CHANCE_ARGS)

fuzz-traffic: $(STAMP)  ## random requests and failures over pages, each against itself alone, FUZZ_MINUTES=30
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.decoding.traffic --minutes $(FUZZ_MINUTES) $(TRAFFIC_ARGS)

fuzz-schemas: $(STAMP)  ## random JSON Schemas against the specification, FUZZ_MINUTES=30; FUZZ_ARGS="--seed 1 --draft 7"
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.constraints.json_schema.fuzzing --minutes $(FUZZ_MINUTES) $(FUZZ_ARGS)

bench: $(STAMP)  ## tokens per second beside transformers, models of 2, 9 and 52 million weights and the bundled one
	$(BIN)/python -m benchmarks.loop $(LOOP_ARGS)

bench-gpu: $(STAMP)  ## the loop on a GPU beside transformers'; GPU_ARGS="decode --shape 8b --rows 1 64"
	$(BIN)/python -m benchmarks.gpu $(GPU_ARGS)

# What a machine with torch, transformers, numba, typer, rich and pytest lacks. With the tree at most 64 MiB may be brought.
KIT_PYTHON ?= 3.12
KIT := interegular jsonschema jsonschema-specifications referencing rpds-py attrs lark pydantic pydantic-core \
       annotated-types typing-inspection hypothesis sortedcontainers
gpu-kit: $(STAMP)  ## kit/ for a GPU machine without a network: packages, Tekken; there: PYTHONPATH=kit/packages; KIT_PYTHON=3.12
	rm -rf kit
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt --target kit/packages \
		--only-binary=:all: --python-version $(KIT_PYTHON) --platform manylinux_2_28_x86_64 \
		--platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 $(KIT)
	$(BIN)/python -c 'from pathlib import Path; from benchmarks.masks import make_tokenizer; make_tokenizer(Path("kit/tekken"))'
	$(BIN)/python -m benchmarks.gpu_models

bench-masks: $(STAMP)  ## token masks beside llguidance and XGrammar (pip install them); MASKS_ARGS="--all" or "--suite"
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.masks $(MASKS_ARGS)

bench-grammars: $(STAMP)  ## masks under grammars beside llguidance and XGrammar (pip install them); GRAMMARS_ARGS="--tokenizer F"
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.grammars $(GRAMMARS_ARGS)

bench-forced: $(STAMP)  ## tokens without a forward pass of their own on a corpus of schemas; FORCED_ARGS="--tokenizer F"
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.forced $(FORCED_ARGS)

bench-defaults: $(STAMP)  ## texts of ten schemas with the defaults of JsonSchema beside those with any white space and escapes
	$(BIN)/python -m benchmarks.defaults

bench-forwards: $(STAMP)  ## forward passes per token of the sample extraction, proposer by proposer
	$(BIN)/python -m benchmarks.forwards

bench-closing: $(STAMP)  ## what on_length="close" costs beside "return", on a vocabulary of 131k; CLOSING_ARGS="--repeats 1"
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.closing $(CLOSING_ARGS)

bench-constrained: $(STAMP)  ## what a constraint costs per token in the loop, beside llguidance and XGrammar (pip install them)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.constrained $(CONSTRAINED_ARGS)

bench-speculation: $(STAMP)  ## tokens per second with guesses ahead, beside transformers' assisted decoding
	$(BIN)/python -m benchmarks.speculation

bench-beams: $(STAMP)  ## beam search after a long prompt, beside transformers'
	$(BIN)/python -m benchmarks.beams

bench-custom-generate: $(STAMP)  ## the way through custom_generate of transformers beside LLM.generate
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.custom_generate

bench-cache: $(STAMP)  ## what keys and values in eight bits change, and what they cost
	$(BIN)/python -m benchmarks.quantised_cache

bench-attention: $(STAMP)  ## attention of a verify block with packed queries, beside the masked call
	$(BIN)/python -m benchmarks.attention

bench-sampler: $(STAMP)  ## one draw from logits, beside transformers' processors
	$(BIN)/python -m benchmarks.sampler

bench-prefixes: $(STAMP)  ## documents that share their instructions, read once and read each time
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.prefixes

bench-batching: $(STAMP)  ## continuous batching beside static batches and transformers' generate_batch
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.batching

bench-soak: $(STAMP)  ## an endpoint beside hostile clients, 20 minutes; SOAK_ARGS="--attack many-texts" for one of them alone
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.soak $(SOAK_ARGS)

bench-peers: $(STAMP)  ## documents and requests a second beside others, in DECODEKIT_RIVALS=FOLDER; PEERS_ARGS="--threads 1 2"
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.peers $(PEERS_ARGS)

bench-stalls: $(STAMP)  ## gaps of a stream while schemas are compiled beside it; STALLS_ARGS="--schemas 2000"
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.stalls $(STALLS_ARGS)

bench-first-use: $(STAMP)  ## CPU time of a new process up to its first masks, beside llguidance (pip install it)
	$(BIN)/python -m benchmarks.first_use

notebooks: $(STAMP)  ## notebooks/*.py as .ipynb with their outputs, in notebooks/executed/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebooks]'
	mkdir -p notebooks/executed
	for notebook in notebooks/*.py; do \
		$(BIN)/jupytext --to ipynb --set-kernel python3 --execute --output notebooks/executed/$$(basename $$notebook .py).ipynb $$notebook || exit 1; \
	done

docs: $(STAMP)  ## the documentation site, with a reference from docstrings and every link checked: build/site/index.html
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python docs/site/build.py

package: $(STAMP)  ## wheel and sdist in dist/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[publish]'
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

architectures: $(STAMP)  ## which architectures run in which tier: docs/architectures.md
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.models.survey

templates: $(STAMP)  ## what is made of real chat templates: docs/templates.md; needs the corpus
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chat.templates_page

options: $(STAMP)  ## every option with its values: docs/options.md, and the types of those that processors declare
	$(BIN)/python -m tests.options_page

train: $(STAMP)  ## go on training the bundled model, or train it anew (hours on two cores)
	$(BIN)/python -m training.train tiny

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache build *.egg-info

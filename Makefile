# make demo | test | test-long | test-gpu | bench | lint | clean. Everything is installed into .venv, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := runs/quickstart
# Further arguments of `pip install torch`, e.g. where the CPU builds of PyTorch are to be found.
TORCH_ARGS ?=
export TOKENIZERS_PARALLELISM := false

.PHONY: setup demo test test-long test-gpu bench lint clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
		|| { echo "the venv module is missing; on Debian: apt-get install python3-venv"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# torch first and by its exact version: a range lets pip take a CUDA build of several GB.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0 $(TORCH_ARGS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	@if test -e $(DEMO)/best.yaml; then \
		echo "$(DEMO) is there already: this is what it holds; remove it to run the demo again"; \
		$(BIN)/rlhf-sweep status $(DEMO) && $(BIN)/rlhf-sweep best $(DEMO); \
	else \
		echo $(BIN)/rlhf-sweep run quickstart --out $(DEMO); \
		$(BIN)/rlhf-sweep run quickstart --out $(DEMO); \
	fi

# Processes that share the tests must name them alike; what starts clusters has the machine to itself.
test: setup
	PYTHONHASHSEED=0 $(BIN)/python -m pytest -n 2 --dist loadfile tests/unit tests/property tests/vectors
	$(BIN)/python -m pytest tests/contract tests/integration

test-long: setup
	$(BIN)/python -m pytest -m long

# Prints tokens a second and memory of a trial of each layout.
test-gpu: setup
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
		$(BIN)/python -m pytest -m gpu -s tests/gpu; \
	else \
		echo "torch sees no CUDA device here: nothing to test"; \
	fi

# Each prints one line of JSON; the peers' environment is made at the first call.
bench: setup
	for size in small large; do \
		$(BIN)/python tests/benchmarks/generation.py --size $$size; \
		$(BIN)/python tests/benchmarks/ppo_iteration.py --size $$size; \
	done
	$(BIN)/python tests/benchmarks/weight_delivery.py
	$(BIN)/python tests/benchmarks/shared_roles.py
	$(BIN)/python tests/benchmarks/teardown.py
	$(BIN)/python tests/benchmarks/warm_start.py
	$(BIN)/python tests/benchmarks/dispatch.py
	$(BIN)/python tests/benchmarks/load.py
	$(BIN)/python tests/benchmarks/memory.py
	$(BIN)/python tests/benchmarks/search_quality.py
	$(BIN)/python tests/benchmarks/search_quality.py --all
	$(BIN)/python tests/benchmarks/rejections.py
	$(BIN)/python tests/benchmarks/guards.py
	$(BIN)/python tests/benchmarks/overhead.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis

# Each target is enough by itself on a fresh machine with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BENCH := .venv-bench
BIN := $(VENV)/bin
INSTALL := install --quiet --constraint constraints.txt
# Test processes share the cores, so each computes with one thread. The tests of a file stay in one process, because they
# share slow fixtures.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

.PHONY: demo test test-full check format bench readme clean

# Run again to resume; a finished demo only writes its report again.
demo: $(VENV)/ready
	$(BIN)/vitrine demo --out demo

test: $(VENV)/dev
	$(PYTEST) -m "not full"

test-full: $(VENV)/dev
	$(PYTEST)

check: $(VENV)/dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/basedpyright

format: $(VENV)/dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Run the commands of README.md and insert their output.
readme: $(VENV)/dev
	$(BIN)/python docs/readme.py

bench: $(BENCH)/ready
	$(BENCH)/bin/python benchmarks/parity.py
	$(BENCH)/bin/python benchmarks/startup.py
	$(BENCH)/bin/python benchmarks/forward.py
	$(BENCH)/bin/python benchmarks/train_step.py
	$(BENCH)/bin/python benchmarks/fit.py
	$(BENCH)/bin/python benchmarks/masked_patches.py
	$(BENCH)/bin/python benchmarks/step_memory.py
	$(BENCH)/bin/python benchmarks/loader.py
	$(BENCH)/bin/python benchmarks/few_shot.py
	$(BENCH)/bin/python benchmarks/inspect_memory.py
	$(BENCH)/bin/python benchmarks/duplicates.py

# torch is installed first and alone, so that packages that need it find this version.
$(VENV)/torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip $(INSTALL) torch
	@touch $@

$(VENV)/ready: $(VENV)/torch pyproject.toml
	$(BIN)/pip $(INSTALL) --editable .
	@touch $@

$(VENV)/dev: $(VENV)/torch pyproject.toml
	$(BIN)/pip $(INSTALL) --editable '.[dev]'
	@touch $@

# Apart from .venv, because transformers imports any torchvision it finds. The peers are installed without dependencies, which
# could bring another torch. timm imports torchvision, of which only the Python part works with a CPU-only torch;
# benchmarks/peers.py works around the rest.
$(BENCH)/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip $(INSTALL) torch
	$(BENCH)/bin/pip $(INSTALL) --editable . transformers pillow einops
	$(BENCH)/bin/pip $(INSTALL) --no-deps timm vit-pytorch torchvision
	@touch $@

clean:
	rm -rf $(VENV) $(BENCH) demo .pytest_cache .ruff_cache build

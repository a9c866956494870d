# Each target is enough by itself on a fresh machine with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --constraint constraints.txt
# Test processes share the cores among them, so each computes with one thread.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

.PHONY: demo test test-full check format bench clean

demo: $(VENV)/dev
	@echo "make demo: there is no demo yet; 'vitrine models' shows what there is." >&2; exit 1

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

bench: $(VENV)/bench
	$(BIN)/python benchmarks/forward.py
	$(BIN)/python benchmarks/train_step.py

# torch comes first and alone, so that what asks for a torch finds this one installed.
$(VENV)/torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	@touch $@

$(VENV)/dev: $(VENV)/torch pyproject.toml
	$(PIP) --editable '.[dev]'
	@touch $@

# Without their dependencies, which could draw in another torch. Of torchvision, which timm imports, only the Python part
# works with a torch for processors alone; benchmarks/peers.py steps around the rest.
$(VENV)/bench: $(VENV)/dev
	$(PIP) --no-deps timm vit-pytorch torchvision
	$(PIP) einops pillow
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build

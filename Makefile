# make demo | make test | make bench | make docs | make fmt: each sets up what it needs in .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
SOURCES := $(shell find core bridge torch_tpu -type f \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.cpp' -o -name '*.py' -o -name 'CMakeLists.txt' \) 2>/dev/null)

.PHONY: demo test test-c test-py bench docs fmt lint clean

# PyTorch first, at one version: the bridge is built for the PyTorch that is there.
$(VENV)/torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(TORCH) numpy
	$(BIN)/pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.10' cmake ninja
	touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml CMakeLists.txt $(SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation '.[demo,test]'
	touch $@

# Trains and samples a character GPT on device "tpu" for about two minutes.
demo: $(VENV)/installed
	$(BIN)/python examples/mingpt/train.py --out demo-run --seconds 120 --steps 1500

test: test-c test-py

test-c: $(VENV)/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake -S . -B build/tests -G Ninja -DTPU_SANITIZE=address > /dev/null
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake --build build/tests
	TPU_TEST_CPU_PLUGIN="$$($(BIN)/python -c "from torch_tpu.plugins import cpu_plugin; print(cpu_plugin())")" $(BIN)/ctest --test-dir build/tests --output-on-failure -j 2

test-py: $(VENV)/installed
	$(BIN)/pytest tests -q

bench: $(VENV)/installed
	$(BIN)/python benchmarks/run.py

docs: $(VENV)/installed
	$(BIN)/python docs/build.py

fmt: $(VENV)/torch
	$(BIN)/pip install --quiet --disable-pip-version-check clang-format ruff
	$(BIN)/clang-format -i $$(git ls-files '*.c' '*.h' '*.cpp')
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:
	rm -rf build $(VENV)

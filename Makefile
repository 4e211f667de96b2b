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

# First the C tests, under sanitizers; then pytest, whose summary is the last line.
test: test-c
	$(MAKE) --no-print-directory test-py

test-c: $(VENV)/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake -S . -B build/tests -G Ninja -DTPU_SANITIZE=address > /dev/null
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake --build build/tests
	TPU_TEST_CPU_PLUGIN="$$($(BIN)/python -P -c "from torch_tpu import plugins; print(plugins.cpu_plugin() or '')")" \
	TPU_TEST_LIBTPU="$$($(BIN)/python -P -c "from torch_tpu import plugins; print(plugins.library('libtpu', 'libtpu.so') or '')")" \
	$(BIN)/ctest --test-dir build/tests --output-on-failure --timeout 300 -j 2

# The library behind tests/lower_harness.py is the core, built without sanitizers.
test-py: $(VENV)/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake -S . -B build/harness -G Ninja > /dev/null
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake --build build/harness --target tpu_lower_harness
	TPU_BUILD_DIR="$(CURDIR)/build/harness" $(BIN)/pytest tests -q -n 2

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

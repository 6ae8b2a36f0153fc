# Thin: the work is in CMake, CTest and scripts/. Every target sets up what it needs by itself.
JOBS ?= 2
PYTHON ?= /usr/bin/python3
CTEST_FLAGS = -j$(JOBS) --output-on-failure --no-tests=error
SOURCES = git ls-files '*.h' '*.hpp' '*.c' '*.cpp' '*.cuh' '*.cu'

.DEFAULT_GOAL := help
.PHONY: help build test test-engines demo lint format test-asan test-tsan clean \
        setup-build setup-test setup-lint configure configure-tests build-tests

help:
	@echo 'make build      the library and the command, build/bin/driftless'
	@echo 'make test       builds and runs all tests'
	@echo 'make test-engines  real vLLM and SGLang on the CPU; makes their environments first, once'
	@echo 'make demo       the main job under mpirun over every road, on made-up data; ends with a table'
	@echo 'make lint       clang-format and clang-tidy; changes nothing'
	@echo 'make format     applies clang-format'
	@echo 'make test-asan  tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make test-tsan  tests under ThreadSanitizer'
	@echo 'make clean      removes the build folders'

setup-build:
	@scripts/setup.sh build

setup-test:
	@scripts/setup.sh build test

setup-lint:
	@scripts/setup.sh build test lint

# Changes of CMake files after this are noticed by the build itself; the presets are not.
configure: setup-build
	@test build/build.ninja -nt CMakePresets.json || \
	  { cmake --preset release -DDRIFTLESS_BUILD_TESTS=OFF && touch build/build.ninja; }

# Where there is nvcc but no GPU the tests compile the GPU's parts for one architecture, and NCCL's
# header comes from PyPI: what cannot run here can at least not break unseen.
TEST_FLAGS = -DDRIFTLESS_CUDA_ARCHITECTURES=90-real $$(scripts/nccl_root.sh)

configure-tests: setup-test
	@{ test build/build.ninja -nt CMakePresets.json && \
	   grep -q '^DRIFTLESS_BUILD_TESTS:BOOL=ON' build/CMakeCache.txt; } || \
	  { cmake --preset release $(TEST_FLAGS) && touch build/build.ninja; }

build: configure
	@cmake --build build

build-tests: configure-tests
	@cmake --build build

# Both runners run, whatever the first one says.
test: build-tests
	@status=0; \
	ctest --test-dir build $(CTEST_FLAGS) || status=1; \
	if [ -d tests/python ]; then $(PYTHON) -m pytest -q tests/python || status=1; fi; \
	exit $$status

# About 20 minutes, and as many as pip needs to make the environments once; DRIFTLESS_VLLM_PYTHON,
# DRIFTLESS_VLLM_OLDER_PYTHON and DRIFTLESS_SGLANG_PYTHON name some that are there.
test-engines: build-tests
	@$(PYTHON) -m pytest -q -rs tests/engines

demo: build
	@scripts/demo.sh

lint: setup-lint configure-tests
	@$(SOURCES) | xargs -r clang-format-19 --dry-run -Werror
	@scripts/lint.sh build $(JOBS)

format: setup-lint
	@$(SOURCES) | xargs -r clang-format-19 -i

test-asan test-tsan: test-%: setup-test
	@cmake --preset $*
	@cmake --build --preset $*
	@ctest --test-dir build-$* $(CTEST_FLAGS)

clean:
	rm -rf build build-debug build-asan build-tsan build-wheel-*

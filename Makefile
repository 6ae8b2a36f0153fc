# Thin: the work is in CMake, CTest and scripts/. Every target sets up what it needs by itself.
JOBS ?= 2
PYTHON ?= /usr/bin/python3
# Tests wait more than they compute: twice as many at once as there are jobs.
TEST_JOBS ?= $(shell expr $(JOBS) \* 2)
CTEST = ctest --test-dir build -j$(TEST_JOBS) --output-on-failure --no-tests=error
# One worker takes the tests of one file after each other: they share what is slow to make.
PYTEST = $(PYTHON) -m pytest -q -n $(TEST_JOBS) --dist loadfile
ENGINES = $(PYTHON) -m pytest -q -rs tests/engines
SOURCES = git ls-files '*.h' '*.hpp' '*.c' '*.cpp' '*.cuh' '*.cu'

.DEFAULT_GOAL := help
.PHONY: help build test test-long test-night test-engines test-engines-smoke demo lint format test-asan test-tsan \
        fuzz wheel wheels packages release clean setup-build setup-test setup-lint configure configure-tests build-tests

help:
	@echo 'make build      the library and the command, build/bin/driftless'
	@echo 'make test       builds and runs the tests, except for the long ones'
	@echo 'make test-long  soaks, sweeps and network faults that take long and seldom fail'
	@echo 'make test-night 10,000 simulated and 300 real randomized cases; every claim against a record'
	@echo 'make test-engines  real vLLM and SGLang on the CPU; makes their environments first, once'
	@echo 'make test-engines-smoke  one test of each engine'
	@echo 'make demo       the main job under mpirun over every road, on made-up data; ends with a table'
	@echo 'make lint       clang-format, ruff, mypy, and clang-tidy over what changed; changes nothing'
	@echo 'make format     applies clang-format and ruff'
	@echo 'make test-asan  tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make test-tsan  tests under ThreadSanitizer'
	@echo 'make fuzz       libFuzzer (clang) on every decoder, FUZZ_SECONDS each'
	@echo 'make wheel      a wheel for this Python, in build/wheel'
	@echo 'make wheels     wheels for other hosts: PYTHONS="3.11 3.12 3.13" ARCHS="x86_64 aarch64"'
	@echo 'make packages   Debian packages of library, headers and command, in build/packages'
	@echo 'make release    checks a release (changelog, wheels, sums, a clean tree), then tags it'
	@echo 'make clean      removes the build folders'

setup-build:
	@scripts/setup.sh build

setup-test:
	@scripts/setup.sh build test

setup-lint:
	@scripts/setup.sh build test lint

# Development compiles the GPU's parts for one architecture: the GPU that is here, or one that stands
# for all. CMake's default, for packages and wheels, is all of them.
CUDA_ARCHITECTURES ?= $(shell nvidia-smi -L > /dev/null 2>&1 && echo native || echo 90-real)
CONFIGURE = cmake --preset release -DDRIFTLESS_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES) $(CMAKE_FLAGS)

# Changes of CMake files after this are noticed by the build itself; the presets are not. A build with
# tests stays one with tests.
configure: setup-build
	@test build/build.ninja -nt CMakePresets.json || \
	  { $(CONFIGURE) -DDRIFTLESS_BUILD_TESTS=OFF && touch build/build.ninja; }

# The same configuration and the tests: nothing is compiled again but the lists of roads, because NCCL's
# header comes from PyPI for the tests where nvcc is here and NCCL is not.
configure-tests: setup-test
	@{ test build/build.ninja -nt CMakePresets.json && \
	   grep -q '^DRIFTLESS_BUILD_TESTS:BOOL=ON' build/CMakeCache.txt; } || \
	  { $(CONFIGURE) -DDRIFTLESS_BUILD_TESTS=ON $$(scripts/nccl_root.sh) && touch build/build.ninja; }

build: configure
	@cmake --build build -j $(JOBS)

build-tests: configure-tests
	@cmake --build build -j $(JOBS)

# Both runners run, whatever the first one says.
test: build-tests
	@status=0; \
	$(CTEST) -LE long || status=1; \
	$(PYTEST) -m 'not long' tests/python || status=1; \
	exit $$status

test-long: build-tests
	@status=0; \
	$(CTEST) -L long || status=1; \
	$(PYTEST) -m long tests/python || status=1; \
	exit $$status

# Seeds from the date, so that every night tries others; NIGHT_FIRST=N repeats those of a night.
NIGHT_FIRST ?= $(shell date +%Y%m%d)00000
NIGHT_SIMULATED ?= 10000
NIGHT_REAL ?= 300
test-night: build-tests
	@$(PYTHON) tests/night/night.py --first $(NIGHT_FIRST) --simulated $(NIGHT_SIMULATED) \
	  --real $(NIGHT_REAL) --stores --jobs $(JOBS)

# About 20 minutes, and as many as pip needs to make the environments once; DRIFTLESS_VLLM_PYTHON,
# DRIFTLESS_VLLM_OLDER_PYTHON and DRIFTLESS_SGLANG_PYTHON name some that are there.
test-engines: build-tests
	@$(ENGINES)

test-engines-smoke: build-tests
	@$(ENGINES) -m smoke

demo: build
	@scripts/demo.sh

# LINT_ALL=1: clang-tidy over the whole tree. LINT_BASE: what it is compared with.
lint: setup-lint configure
	@$(SOURCES) | xargs -r clang-format-19 --dry-run -Werror
	@scripts/spdx.py check
	@cmake --build build -j $(JOBS) --target driftless_native  # mypy looks at its types
	@scripts/lint_python.sh check
	@cmake --preset lint $$(scripts/nccl_root.sh) > build-lint.log || { cat build-lint.log; exit 1; }
	@scripts/lint.sh build-lint $(JOBS)

format: setup-lint
	@$(SOURCES) | xargs -r clang-format-19 -i
	@scripts/lint_python.sh format

test-asan test-tsan: test-%: setup-test
	@cmake --preset $* $(CMAKE_FLAGS)
	@cmake --build --preset $* -j $(JOBS)
	@ctest --test-dir build-$* -j$(TEST_JOBS) --output-on-failure --no-tests=error -LE long

FUZZ_SECONDS ?= 60
fuzz: setup-test
	@scripts/setup.sh fuzz
	@cmake --preset fuzz
	@cmake --build build-fuzz -j $(JOBS) --target fuzz_programs
	@scripts/fuzz.sh build-fuzz $(FUZZ_SECONDS)

wheel: setup-build
	@$(PYTHON) -m venv build/venvs/wheel-isolated
	@build/venvs/wheel-isolated/bin/pip wheel --no-deps -w build/wheel .

# In build/wheels/out, for PYTHONS and ARCHS; docs/start/install.md.
PYTHONS ?= 3.11 3.12 3.13
ARCHS ?= $(shell uname -m)
wheels: setup-build
	@scripts/setup.sh wheels
	@$(PYTHON) scripts/wheels.py --python $(PYTHONS) --arch $(ARCHS) --jobs $(JOBS)

packages: setup-build
	@scripts/setup.sh package
	@cmake --preset package $(CMAKE_FLAGS)
	@cmake --build build-package -j $(JOBS)
	@rm -rf build/packages
	@cpack --config build-package/CPackConfig.cmake -B build/packages
	@rm -rf build/packages/_CPack_Packages

# `make wheels packages` first. CMakeLists.txt has the version; scripts/release.py says what is checked.
release:
	@scripts/release.py

clean:
	rm -rf build build-package build-debug build-asan build-tsan build-fuzz build-lint build-lint.log build-wheel-*

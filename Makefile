# Short names for commands of CMake, CTest and scripts/. Every target installs what it needs.
JOBS ?= 2
PYTHON ?= /usr/bin/python3
# Tests mostly wait, so twice as many run at once as there are jobs.
TEST_JOBS ?= $(shell expr $(JOBS) \* 2)
CTEST = ctest --test-dir build -j$(TEST_JOBS) --output-on-failure --no-tests=error
# One worker runs all tests of a file, because they share fixtures that are slow to make.
PYTEST = $(PYTHON) -m pytest -q -n $(TEST_JOBS) --dist loadfile
ENGINES = $(PYTHON) -m pytest -q -rs tests/engines
SOURCES = git ls-files '*.h' '*.hpp' '*.c' '*.cpp' '*.cuh' '*.cu'

.DEFAULT_GOAL := help
.PHONY: help build test test-long test-night test-engines test-engines-smoke demo lint format test-asan test-tsan \
        fuzz wheel wheels packages release clean setup-build setup-test setup-lint configure configure-tests build-tests

help:
	@echo 'make build      builds the library and the command, build/bin/driftless'
	@echo 'make test       builds and runs the tests, except for the long ones'
	@echo 'make test-long  runs the long tests: soaks, sweeps, network faults'
	@echo 'make test-night runs 10,000 simulated and 300 real random cases, and checks every claim'
	@echo 'make test-engines  tests vLLM and SGLang on the CPU; installs them on the first call'
	@echo 'make test-engines-smoke  runs one test of each engine'
	@echo 'make demo       runs the main job under mpirun over every road, on made-up data'
	@echo 'make lint       checks with clang-format, ruff, mypy, and clang-tidy on changed files'
	@echo 'make format     applies clang-format and ruff'
	@echo 'make test-asan  runs tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make test-tsan  runs tests under ThreadSanitizer'
	@echo 'make fuzz       runs libFuzzer (clang) on every decoder, FUZZ_SECONDS each'
	@echo 'make wheel      builds a wheel for this Python, in build/wheel'
	@echo 'make wheels     builds wheels for other hosts: PYTHONS="3.11 3.12 3.13" ARCHS="x86_64 aarch64"'
	@echo 'make packages   builds Debian packages of library, headers and command, in build/packages'
	@echo 'make release    checks changelog, wheels, checksums and tree, then tags a release'
	@echo 'make clean      removes the build folders'

setup-build:
	@scripts/setup.sh build

setup-test:
	@scripts/setup.sh build test

setup-lint:
	@scripts/setup.sh build test lint

# Development builds compile GPU code for one architecture: that of this machine's GPU, or sm_90. CMake's
# default, for packages and wheels, is all architectures.
CUDA_ARCHITECTURES ?= $(shell nvidia-smi -L > /dev/null 2>&1 && echo native || echo 90-real)
CONFIGURE = cmake --preset release -DDRIFTLESS_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES) $(CMAKE_FLAGS)

# The build notices changes of CMake files by itself, but not of the presets. A build that was configured
# with tests keeps them.
configure: setup-build
	@test build/build.ninja -nt CMakePresets.json || \
	  { $(CONFIGURE) -DDRIFTLESS_BUILD_TESTS=OFF && touch build/build.ninja; }

# The same configuration with tests. It compiles only the lists of roads again: if nvcc is installed and
# NCCL is not, NCCL's header for the tests comes from PyPI.
configure-tests: setup-test
	@{ test build/build.ninja -nt CMakePresets.json && \
	   grep -q '^DRIFTLESS_BUILD_TESTS:BOOL=ON' build/CMakeCache.txt; } || \
	  { $(CONFIGURE) -DDRIFTLESS_BUILD_TESTS=ON $$(scripts/nccl_root.sh) && touch build/build.ninja; }

build: configure
	@cmake --build build -j $(JOBS)

build-tests: configure-tests
	@cmake --build build -j $(JOBS)

# The second runner runs even if the first one fails.
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

# Seeds come from the date, so that every night tries others; NIGHT_FIRST=N repeats a night.
NIGHT_FIRST ?= $(shell date +%Y%m%d)00000
NIGHT_SIMULATED ?= 10000
NIGHT_REAL ?= 300
test-night: build-tests
	@$(PYTHON) tests/night/night.py --first $(NIGHT_FIRST) --simulated $(NIGHT_SIMULATED) \
	  --real $(NIGHT_REAL) --stores --jobs $(JOBS)

# About 20 minutes; the first call also installs the environments. DRIFTLESS_VLLM_PYTHON,
# DRIFTLESS_VLLM_OLDER_PYTHON and DRIFTLESS_SGLANG_PYTHON select existing ones.
test-engines: build-tests
	@$(ENGINES)

test-engines-smoke: build-tests
	@$(ENGINES) -m smoke

demo: build
	@scripts/demo.sh

# LINT_ALL=1: clang-tidy on the whole tree. LINT_BASE: the commit to compare the tree with.
lint: setup-lint configure
	@$(SOURCES) | xargs -r clang-format-19 --dry-run -Werror
	@scripts/spdx.py check
	@cmake --build build -j $(JOBS) --target driftless_native  # mypy reads its types
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

# Writes to build/wheels/out; see docs/start/install.md.
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

# Run `make wheels packages` first. CMakeLists.txt has the version; scripts/release.py lists the checks.
release:
	@scripts/release.py

clean:
	rm -rf build build-package build-debug build-asan build-tsan build-fuzz build-lint build-lint.log build-python3.12 build-wheel-*

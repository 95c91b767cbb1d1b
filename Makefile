# Everything runs in .venv, which is made on first use from pyproject.toml and constraints.txt.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow attack format layers lists docs benchmark clean

demo: .venv/demo
	$(BIN)/python examples/demo.py

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal --durations=10

test-slow: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal --durations=10 -m slow

attack: .venv/installed
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/attack/fuzz.py
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/attack/crash.py
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/attack/soak.py
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -s -m slow tests/fit/test_damage.py tests/engine/devices/test_ranks.py

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lists: .venv/installed
	$(BIN)/fl-lightning reproduce --ledger docs/results/ledger.md --out docs/results
	$(BIN)/python tools/lists.py
	PYTHONPATH=tests:tools $(BIN)/python tests/callbacks/test_properties.py

docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

layers: .venv/installed
	$(BIN)/python tools/measures.py
	$(BIN)/lint-imports

benchmark: .venv/installed
	$(BIN)/python -m benchmarks

.venv/demo: EXTRA = report
.venv/installed: EXTRA = dev
.venv/demo .venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .[$(EXTRA)]
	touch $@

clean:
	rm -rf .venv build *.egg-info

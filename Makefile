# The commands that people type, and CI types the same ones. All that they make is in .venv.

# Which Python makes the virtual environment: make setup PYTHON=python3.12
PYTHON ?= python3
VENV := .venv

.PHONY: help demo setup test test-fast lint bench soak chaos fuzz audit

demo: setup
	@$(VENV)/bin/kafkasse demo

setup: $(VENV)/ready

# The whole suite: needs a few GB of memory, and Chromium and chromedriver for the page. A test that waits leaves its core
# to another one, so there are more processes than cores.
PROCESSES ?= 3
test: setup
	$(VENV)/bin/pytest -n $(PROCESSES) $(TEST)

# The tests that start no process (broker, browser, Spark, server) and use no network. See tests/support/guard.py.
test-fast: setup
	$(VENV)/bin/pytest -n 2 -m "not processes" --hypothesis-profile=fast -q $(TEST)

lint: setup
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

# Some ten minutes. BENCH="--only fan_out latency" measures parts of it again, BENCH=--quick just tries it out.
bench: setup
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -q -r bench/requirements.txt
	@$(VENV)/bin/python -m bench $(BENCH)

# Clients of all manners on one worker for MINUTES; fails where it has grown. SOAK=--keep writes docs/endurance.md.
MINUTES ?= 15
soak: setup
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -q -r bench/requirements.txt
	@$(VENV)/bin/python -m bench.soak --minutes $(MINUTES) $(SOAK)

# Faults in a random order on many clients, for SECONDS; SEED gives an order of before again. See docs/faults.md.
SECONDS ?= 180
chaos: setup
	@$(VENV)/bin/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# All fuzzers for SECONDS together, by coverage. See docs/security.md.
fuzz: setup
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -q -r tests/attacks/requirements.txt
	@$(VENV)/bin/python -m tests.attacks.fuzz $(SECONDS)

# The pinned packages against known advisories. What cannot be looked up fails it: nobody is to take that for a yes.
audit:
	@"$(PYTHON)" -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip install --disable-pip-version-check -q pip-audit==2.10.1
	@$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r requirements.txt

# Done again only when what is required has changed.
$(VENV)/ready: requirements.txt requirements-dev.txt pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo "make: there is no $(PYTHON) here; install Python 3.11 or newer, or name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "make: $(PYTHON) is older than Python 3.11; name a newer one: make setup PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c "import ensurepip, venv" 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual environments; install its venv package (apt install python3-venv), or name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@echo "Making $(VENV) with everything that kafkasse needs; the first time this takes a few minutes."
	@"$(PYTHON)" -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -r requirements-dev.txt || { echo "make: not all packages could be installed, for the reason that pip gives above; mend that and run make again, it goes on from there" >&2; exit 1; }
	@touch $@

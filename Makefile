# The commands for people and for CI. `make help` lists them. All packages are installed in .venv.

# The Python that creates the virtual environment: make setup PYTHON=python3.12
PYTHON ?= python3
VENV := .venv

.PHONY: asyncapi compat image manifests help demo setup test test-fast lint bench soak chaos attacks old-kafka proxies mutants fuzz audit tutorial uwsgi

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 12

demo: setup ## run the demo: Kafka, a Spark pipeline and a web page
	@$(VENV)/bin/kafkasse demo

setup: $(VENV)/ready ## create the virtual environment

# Many tests wait instead of using a core, so use more processes than cores.
PROCESSES ?= 3
test: setup ## run all tests; TEST="tests/server -x" passes arguments to pytest
	$(VENV)/bin/pytest -n $(PROCESSES) $(TEST)

# These tests start no process (broker, browser, Spark, server) and use no network: see tests/support/guard.py.
test-fast: setup ## run the tests that need no broker, browser or Spark, in about two minutes
	$(VENV)/bin/pytest -n 4 -q -m "not processes" --hypothesis-profile=fast $(TEST)

lint: setup ## check the style and the types
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

# About an hour. BENCH="--only fan_out latency" repeats only these parts. BENCH=--quick only tests that they run.
bench: setup ## run the benchmarks
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -q -r bench/requirements.txt
	@$(VENV)/bin/python -m bench $(BENCH)

# Many different clients read from one worker. Fails if the worker's resources grow. SOAK=--keep updates docs/endurance.md.
MINUTES ?= 15
soak: setup ## run the soak test for MINUTES
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -q -r bench/requirements.txt
	@$(VENV)/bin/python -m bench.soak --minutes $(MINUTES) $(SOAK)

# SEED repeats the order of an earlier run. See docs/faults.md.
SECONDS ?= 180
chaos: setup ## inject random faults for SECONDS while many clients read
	@$(VENV)/bin/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# `make test` runs the same attacks with smaller sizes. See tests/attacks/sizes.py.
attacks: setup ## run the attacks on memory and on the event loop in full size
	@ATTACKS=full $(VENV)/bin/pytest -s --timeout 900 tests/attacks/test_stalls.py tests/attacks/test_isolation.py $(TEST)

# Downloads many versions of the packages once. See docs/install.md. COMPAT="--python 3.11 --only lowest" tests only these.
compat: setup ## test the lowest and newest versions of all packages in new virtual environments
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -q uv==0.13.9
	@$(VENV)/bin/python -m tests.project.compat $(COMPAT)

# Downloads 31 MB once. See docs/faults.md.
old-kafka: setup ## read from Kafka 2.6
	@OLD_KAFKA=1 $(VENV)/bin/pytest tests/kafka/test_old_kafka.py

# Skips the proxies that are not installed. See docs/proxies.md.
proxies: setup ## run streams through real proxies with their documented configuration
	@PROXIES=1 $(VENV)/bin/pytest tests/proxies

# `make test` does the same without the installation. Downloads 400 MB once.
tutorial: setup ## follow docs/tutorial.md in a new virtual environment
	@TUTORIAL=full $(VENV)/bin/pytest tests/tutorial/test_tutorial.py

# Needs Debian, root, buildah and debootstrap; keeps the base image in build/image. See docs/platforms.md.
image: setup ## build the Dockerfile and run the image, without Docker
	@IMAGE=1 $(VENV)/bin/pytest -s --timeout 900 tests/platforms/test_image.py $(TEST)

# Needs Go. See docs/platforms.md.
manifests: setup ## check the manifests of Kubernetes and Compose against their schemas
	@"$(PYTHON)" -m venv $(VENV)/manifests
	@$(VENV)/manifests/bin/python -m pip install --disable-pip-version-check -q kubernetes-validate==1.37.0
	@GOBIN=$(CURDIR)/$(VENV)/manifests/bin go install github.com/compose-spec/compose-go/v2/cmd@v2.16.2
	@MANIFESTS=$(CURDIR)/$(VENV)/manifests/bin $(VENV)/bin/pytest tests/platforms -k schemas $(TEST)

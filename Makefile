# Signalbox on one machine. `make` alone lists what there is.
#
# Programs are built with the dev profile, because that is what starts soonest from a fresh clone: a release build
# takes several times as long, and a first look does not need it. PROFILE=release builds for real traffic.

PROFILE ?= dev
TARGET := $(or $(CARGO_TARGET_DIR),target)
BUILT := $(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
# What `make run` passes on, for example ARGS='--port-offset 1000 --data-dir .signalbox-2'.
ARGS ?=

RUN_PACKAGES := nginx libnginx-mod-http-lua lua-resty-core lua-cjson redis-server curl
# lua-check is the linter. Never luajit: it replaces the library that the Lua module of nginx needs.
# The examples of the documentation, which a test runs, use jq and python3.
TEST_PACKAGES := $(RUN_PACKAGES) lua-check openssl jq python3
BENCH_PACKAGES := $(RUN_PACKAGES) lua-nginx-redis haproxy caddy mtail goaccess

.PHONY: help run test browser bench soak deb schemathesis reference fmt clean build packages-run packages-test packages-bench
.DEFAULT_GOAL := help

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do \
		printf 'make %-8s %s\n' "$$name" "$$what"; done

run: packages-run build ## Install what is missing, build, start everything with two sample applications (Ctrl-C ends it)
	@$(BUILT)/signalbox up --demo $(ARGS) || { code=$$?; [ $$code -eq 130 ] || exit $$code; }

browser: ## Install the requirements of the dashboard's browser tests: Chromium, Node, and playwright-core below target/
	@.ci/browser

test: packages-test ## Install missing packages, run everything that CI runs; STRICT=1 fails on tests that needed a retry
	@.ci/test

bench: packages-bench ## Measure side by side with nginx, HAProxy, Caddy, brokers and others, and print ratios
	cargo build --workspace --release
	cargo run --quiet --release -p signalbox-bench -- $(ARGS)

# Chaos at the edge for CHAOS_SECONDS (default 600), counters of requests for SOAK_SECONDS, and the order of events through
# SOAK_KILLS kills (default 1000, with Redis writing through and with Redis writing every second), each within SOAK_SECONDS;
# SOAK_LABELS labels (default 10000) while parts die for SOAK_SECONDS, and SIGNALBOX_SEEDS random machines (default 2000).
# SIGNALBOX_SEED repeats the choices.
soak: packages-run ## Kill parts at random under load for SOAK_SECONDS or SOAK_KILLS; fails when a promise is broken
	cargo build --workspace
	cargo test -p signalbox-tests --test it -- --ignored --nocapture soak
	SIGNALBOX_SEEDS=$${SIGNALBOX_SEEDS:-2000} cargo test -p signalbox-pacemaker --lib -- machines::tests::fates machines::tests::foretold

reference: build ## Write docs/configuration.md, the reference of all configuration keys
	.ci/reference $(BUILT) >docs/configuration.md.new
	mv docs/configuration.md.new docs/configuration.md

schemathesis: ## Install what holds the API against its own document, below target/
	@.ci/schemathesis

# DEB_PROFILE=dev builds sooner, for a look at what is inside.
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
	cargo deb --no-build --profile $(DEB_PROFILE) -p signalbox

fmt: ## Format the Rust sources
	cargo fmt --all

clean: ## Remove what was built; data in .signalbox stays
	cargo clean

build:
	@cargo build --profile $(PROFILE) -p signalbox -p signalbox-demo -p signalbox-pacemaker -p signalbox-sidecar

packages-run:
	@.ci/packages $(RUN_PACKAGES)

packages-test:
	@.ci/packages $(TEST_PACKAGES)

# Peers that Debian does not have here are skipped by the bench, with a note.
packages-bench:
	@.ci/packages $(RUN_PACKAGES)
	@.ci/packages --optional $(filter-out $(RUN_PACKAGES),$(BENCH_PACKAGES))

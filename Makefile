# Everything that people and CI do with this project. `make` alone lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

CACHE := $(abspath $(or $(FENCEPOST_CACHE),.cache))
TARGET := $(or $(CARGO_TARGET_DIR),target)
CONFIG ?= fencepost.example.toml
# Options for the demo and the bench, and a filter for the tests: make test ARGS=claims
ARGS ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Build what the embedded set-up needs and watch it work (no Kafka, no Cassandra)
	@tests/setup build
	@cargo build --locked --profile demo -p cli --no-default-features
	@$(TARGET)/demo/fencepost demo $(ARGS)

.PHONY: run
run: ## Run one process with an example config: make run CONFIG=my.toml
	@tests/setup build
	@cargo build --locked --profile demo -p cli --no-default-features
	@exec $(TARGET)/demo/fencepost standalone --config $(CONFIG)

.PHONY: setup
setup: ## Install what building and testing need (apt when root, else say what is missing)
	@tests/setup test
	@tests/setup data
	@tests/stack/stack fetch

.PHONY: test
test: ## Run every test, with a real Kafka and a real Cassandra that are started and stopped
	@tests/run all $(ARGS)

.PHONY: test-fast
test-fast: ## Run the tests that need neither
	@tests/run fast $(ARGS)

# Seeds of the simulation: how many, or the one to run with its trace
SEEDS ?=
SEED ?=

.PHONY: soak
soak: ## Run many seeds of the simulation: make soak SEEDS=5000; or one, with its trace: make soak SEED=123
	@FENCEPOST_SEEDS=$(or $(SEEDS),5000) FENCEPOST_SEED=$(SEED) \
		cargo test --locked --workspace --test simulation -- every_invariant --nocapture

.PHONY: mutants
mutants: ## Break the product on purpose, once for each patch in tests/mutants, and see that the simulation finds it
	@SEEDS=$(SEEDS) tests/mutants/run $(ARGS)

# Minutes of faults. Without a SEED it is another plan each time; it is printed.
MINUTES ?= 30

.PHONY: chaos
chaos: ## Faults by plan, MINUTES (30) of them by SEED, against three brokers and three replicas, and a judgement
	@tests/setup test
	@tests/setup data
	@tests/stack/stack fetch
	@cargo build --locked --workspace --bins
	FENCEPOST_TEST_STACK=required CHAOS_MINUTES=$(MINUTES) CHAOS_SEED=$(or $(SEED),$(strip $(shell od -An -N4 -tu4 /dev/urandom))) \
		cargo test --locked -p system-tests --test chaos -- --nocapture

.PHONY: fuzz
fuzz: ## Feed the readers of foreign bytes with anything, FUZZ_SECONDS (60) for each of the targets in fuzz/
	@tests/fuzz $(ARGS)

.PHONY: lint
lint: ## Format, clippy, doc links, licences and sources, unused dependencies
	@tests/setup test
	@tests/setup lint
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D rustdoc::broken_intra_doc_links" cargo doc --locked --workspace --no-deps --quiet
	$(CACHE)/tools/bin/cargo-deny --log-level error check bans licenses sources
	$(CACHE)/tools/bin/cargo-shear
	cargo fetch --locked --quiet --manifest-path fuzz/Cargo.toml

.PHONY: bench
bench: ## Measure the embedded set-up, then Kafka + Cassandra, each beside its limits
	@tests/bench $(ARGS)

.PHONY: clean
clean: ## Stop what runs and delete what was built and fetched
	@tests/stack/stack down
	@cargo clean
	@rm -rf .cache

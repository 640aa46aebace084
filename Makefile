# Everything a person does with this repository. `make` alone lists it.
# On a fresh Debian machine with Rust, each target first installs by apt what it needs and is missing (.ci/setup).

SHELL  := bash
PORT   ?= 6379
TARGET := $(or $(CARGO_TARGET_DIR),target)
MODULE := $(TARGET)/release/libsluice.so

.DEFAULT_GOAL := help
.PHONY: help run build test lint bench servers torture clean tools

help: ## List the targets (this)
	@echo "sluice: rate limits and reliable queues inside Redis and Valkey"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  make run PORT=7000 serves on another port; SLUICE_ENGINES=redis-7.0,valkey-8.1 make test restricts the engines."

# redis.conf loads ./target/release/libsluice.so, so here the module is built there whatever CARGO_TARGET_DIR says.
run: tools ## Build the module and serve it in the foreground, with redis.conf
	@if (exec 3<>/dev/tcp/127.0.0.1/$(PORT)) 2>/dev/null; then \
	  echo "Something listens on port $(PORT) already. Stop it, or: make run PORT=7000" >&2; exit 1; fi
	@cargo build --release --target-dir target
	@printf '\n%s\n\n%s\n%s\n%s\n\n%s\n\n' \
	  'Serving on port $(PORT). Three commands to try first, in another terminal:' \
	  '  redis-cli -p $(PORT) TB.TAKE api:alice 10 10 60000         # a token bucket: 10 a minute' \
	  '  redis-cli -p $(PORT) RQ.PUSH jobs "hello" DELAY 2000       # a message, due in 2 seconds' \
	  '  redis-cli -p $(PORT) RQ.CLAIM jobs LEASE 10000 BLOCK 5000  # wait for it, with a lease of 10 seconds' \
	  'Ctrl-C stops the server. What it stored is in ./appendonlydir.'
	@exec redis-server redis.conf --port $(PORT)

build: tools ## Build the module: target/release/libsluice.so
	cargo build --release
	@echo "built $(MODULE)"

test: servers build ## Run every test on every engine
	cargo test --no-fail-fast

lint: tools ## Check format, lints, documentation and (if cargo-deny is there) dependencies
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --no-deps --document-private-items --quiet
	@if command -v cargo-deny >/dev/null; then cargo deny check; else echo "cargo-deny is not installed: dependencies not checked"; fi

bench: servers build ## Measure: the engine alone, and the module in a server beside Redis's own commands
	cargo bench --bench engine --bench server

servers: ## Fetch the engines that the tests run on into .servers/
	@.ci/setup redis-server python3
	@.ci/servers

torture: servers build ## Run the random tests for long, with more seeds (SLUICE_SEED=n begins elsewhere)
	PROPTEST_CASES=5000 cargo test --lib
	SLUICE_TORTURE=1 cargo test --test all drivers:: -- --nocapture

clean: ## Remove what was built and fetched (not what a server stored)
	cargo clean
	rm -rf .servers

tools:
	@command -v cargo >/dev/null || { echo "sluice needs Rust (cargo)." >&2; exit 1; }
	@.ci/setup cc clang libclang redis-server

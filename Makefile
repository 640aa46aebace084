# Everything a person does with this repository. `make` alone lists it.
# On a fresh Debian machine with Rust, each target first installs by apt what it needs and is missing (.ci/setup).

SHELL  := bash
PORT   ?= 6379
TARGET := $(or $(CARGO_TARGET_DIR),target)
MODULE := $(TARGET)/release/libsluice.so

.DEFAULT_GOAL := help
ENGINE ?= redis-7.0

.PHONY: help run build test quick lint bench servers torture miri asan fuzz clean tools

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

# The tests load the release build; tests/panics.rs loads the debug build, which cargo makes beside the tests and which panics when it is told to.
# Many tests wait for servers: one more of them at a time than there are cores.
test: servers build ## Run all tests on every engine (torture programs in a short form, on one or some)
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$(($$(nproc) + 1))} cargo test --no-fail-fast

quick: tools ## Run the engine's tests, and short tests on one server: ENGINE=redis-7.0
	cargo build --profile quick
	cargo test --lib
	SLUICE_SO=$(abspath $(TARGET)/quick/libsluice.so) SLUICE_ENGINES=$(ENGINE) SLUICE_FORMS=plain \
	  cargo test --test all -- cases:: keyspace:: introspection:: blocking:: architecture::

lint: tools ## Check format, lints, documentation and (if cargo-deny is there) dependencies
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --no-deps --document-private-items --quiet
	@if command -v cargo-deny >/dev/null; then cargo deny check bans licenses sources; \
	  else echo "SKIPPED: dependencies are not checked: cargo install cargo-deny"; fi

bench: servers build ## Measure: the engine alone, and the module in a server beside Redis's own commands
	cargo bench --bench engine --bench server

servers: ## Fetch the engines that the tests run on into .servers/
	@.ci/setup redis-server python3
	@.ci/servers

torture: servers build ## Run what is random for long: kills, failovers, fuzzers, in every form (SLUICE_SEED=n begins elsewhere)
	PROPTEST_CASES=5000 cargo test --lib
	SLUICE_TORTURE=1 cargo test --test all torture:: -- --nocapture
	SLUICE_TORTURE=1 cargo test --test all drivers:: -- --nocapture
	SLUICE_TORTURE=1 cargo test --test all -- cases:: blocking:: waits:: timer:: turns::

miri: ## Run the engine's tests in an interpreter that sees undefined behaviour (needs nightly Rust with miri)
	@if cargo +nightly miri --version >/dev/null 2>&1; then \
	  PROPTEST_CASES=2 MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --lib engine::; \
	else echo "SKIPPED: no Miri: rustup toolchain install nightly --component miri --component rust-src"; fi

# The module and a little library are built with what every Rust has; RUSTC_BOOTSTRAP lets a stable one do so.
# The servers' own allocator must be libc's, as in the Valkeys that `make servers` fetches, or the sanitizer sees no allocation.
ASAN_RUNTIME = $(shell $(or $(CC),cc) -print-file-name=libasan.so 2>/dev/null)
HOST = $(shell rustc -vV | sed -n 's/^host: //p')

asan: servers tools ## Run tests of waiting, turns and keys, and hostile commands, with AddressSanitizer in the module (needs gcc's libasan)
	@engines=$$(for s in .servers/*/*-server; do if $$s --version | grep -q malloc=libc; then basename $$(dirname $$s); fi; done | paste -sd,); \
	if [ ! -e "$(ASAN_RUNTIME)" ]; then echo "SKIPPED: no libasan.so: install gcc"; exit 0; fi; \
	if [ -z "$$engines" ]; then echo "SKIPPED: no server with libc's malloc: make servers"; exit 0; fi; \
	set -e; RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" cargo build --profile quick --target $(HOST) --target-dir $(TARGET)/asan; \
	$(or $(CC),cc) -shared -fPIC -o $(TARGET)/asan/server.so tests/sanitizer/server.c -ldl; \
	SLUICE_SO=$(abspath $(TARGET)/asan/$(HOST)/quick/libsluice.so) SLUICE_PRELOAD="$(abspath $(TARGET)/asan/server.so) $(ASAN_RUNTIME)" \
	SLUICE_FORMS=plain SLUICE_ENGINES=$$engines cargo test --test all -- blocking:: keyspace:: turns:: hostile_commands_kill

fuzz: tools ## Run the fuzzers of carried changes, snapshots and arguments, SECONDS=60 each (needs cargo-fuzz and a C++ compiler)
	@if ! command -v cargo-fuzz >/dev/null; then echo "SKIPPED: no cargo-fuzz: cargo install cargo-fuzz"; \
	else .ci/setup c++; for target in effects snapshots arguments; do \
	  RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir tests/fuzz $$target -- -max_total_time=$(or $(SECONDS),60) -rss_limit_mb=4096 || exit 1; done; fi

clean: ## Remove what was built and fetched (not what a server stored)
	cargo clean
	rm -rf .servers

tools:
	@command -v cargo >/dev/null || { echo "sluice needs Rust (cargo)." >&2; exit 1; }
	@.ci/setup cc clang libclang redis-server

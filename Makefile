# make test   everything that CI runs: format, lints, licences, all tests against real peers
# make demo   a host in miniature: fake chips, a real JAX job, the agent, a capture opened with xprof
# make bench  the speed and memory promises, as ratios against peers measured in the same run
# make fmt    format the sources

.PHONY: test demo bench fmt setup lint

CARGO ?= cargo

setup:
	tests/setup.sh

fmt:
	$(CARGO) fmt --all

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

test: setup lint
	target/tools/bin/cargo-deny --log-level error check licenses bans sources
	$(CARGO) build --workspace --locked
	$(CARGO) test --workspace --locked

demo:
	packaging/demo/run.sh

bench: setup
	benches/run.sh

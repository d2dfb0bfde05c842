# make check        format, lint, unit tests: needs Rust and a C compiler, no root; network the first time, for the crates
# make e2e T=name   the end-to-end tests whose name contains T; all of them without T
# make test         lint, licences, all tests against real peers; the line `setup: …` says what it installs
# make bench        the promises of speed and memory beside peers of the same run; BENCH=name runs one
# make soak         an agent that is killed ROUNDS times (200) at random instants of captures and uploads; one capture of 1,024 hosts; the
#                   memory of a job that is drained for 10 minutes; every step of a minute in a snapshot
# make fuzz T=name  the fuzz target T for FUZZ_SECONDS (60); without T, the list of targets
# make demo         a small TPU host: fake chips, a real JAX job, the agent, captures of one host and of two
# make fmt          format the sources

.PHONY: check e2e test bench soak fuzz demo fmt setup lint

CARGO ?= cargo
T ?=
FUZZ_SECONDS ?= 60
ROUNDS ?= 200

check: lint
	$(CARGO) test --locked --workspace --exclude tpuscope-tests --exclude tpuscope-benches --exclude fake-libtpu --exclude fault-disk --exclude set-clock

e2e:
	$(CARGO) build --locked --workspace
	$(CARGO) test --locked --workspace --test e2e -- $(T)

# The first line of setup.sh says what it will install and as which user.
test: setup lint
	target/tools/bin/cargo-deny --log-level error check licenses bans sources
	$(CARGO) build --workspace --locked
	$(CARGO) test --workspace --locked

bench: setup
	benches/run.sh

# It prints its seed; TPUSCOPE_SOAK_SEED=N repeats a run.
soak:
	$(CARGO) build --locked -p tpuscope -p tpuscope-tests
	TPUSCOPE_SOAK_ROUNDS=$(ROUNDS) $(CARGO) test --locked -p tpuscope-tests --test e2e -- --nocapture uploads::killed
	TPUSCOPE_SIMULATED_HOSTS=1024 $(CARGO) test --locked -p tpuscope-tests --test e2e -- --nocapture capture_hosts::many
	TPUSCOPE_FLAT_SECONDS=600 $(CARGO) test --locked -p tpuscope-tests --test e2e -- --nocapture memory_of_a_workload_stays_flat
	TPUSCOPE_SNAPSHOT_SECONDS=60 $(CARGO) test --locked -p tpuscope-tests --test e2e -- --nocapture every_step_of_a_drained_job

fuzz:
	@[ -z "$(T)" ] || tests/setup.sh fuzz
	@tests/fuzz.sh "$(T)" $(FUZZ_SECONDS)

demo:
	packaging/demo/run.sh

fmt:
	$(CARGO) fmt --all

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@# A doc comment says what it is.
	@! grep -rnE --include='*.rs' --exclude-dir=target '/// (Which|Why|Where|What|Who|How|When|Whose)( (not|for|many|long|file|path))?\.$$' .

setup:
	@tests/setup.sh

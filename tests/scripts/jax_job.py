"""A small JAX CPU job with its profiler server on: `jax_job.py --port N [options]`.

Prints `ready` once the profiler listens and the first step has run; with --log it prints one line
`step <number> <begin ns> <end ns>` per step, with --tell-traces `traced` when a trace begins and `untraced` when it ends. Ends when its standard input closes, so that it never outlives a test.
A line `start <folder>` or `stop` there makes the program trace itself; it prints `start ok`, or `start <the error>`.
"""

import argparse
import os
import sys
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True, help="where the profiler listens")
parser.add_argument("--step-ms", type=float, default=10.0, help="length of a step")
parser.add_argument(
    "--fixed-work", action="store_true", help="a step is a fixed work that takes --step-ms when nothing disturbs it"
)
parser.add_argument(
    "--number-by-clock", action="store_true", help="steps of all jobs with this have the same numbers at the same time"
)
parser.add_argument("--steps", type=int, default=0, help="end after so many steps; 0: never")
parser.add_argument("--calls", type=int, default=0, help="Python calls per step, for a heavy python trace")
parser.add_argument("--size", type=int, default=64, help="side of the matrices")
parser.add_argument("--annotations", type=int, default=0, help="annotations per step, for a large host trace")
parser.add_argument("--own-trace", help="trace itself into this folder every 50 steps, and print how that ended")
parser.add_argument("--log", action="store_true", help="print every step")
parser.add_argument("--tell-traces", action="store_true", help="print when a trace begins and ends")
options = parser.parse_args()


def trace(command, *folder):
    import jax

    try:
        jax.profiler.start_trace(*folder) if command == "start" else jax.profiler.stop_trace()
        print(command, "ok", flush=True)
    except Exception as error:
        print(command, str(error).replace("\n", " "), flush=True)


def end_with_parent():
    for line in sys.stdin:
        trace(*line.split())
    os._exit(0)


threading.Thread(target=end_with_parent, daemon=True).start()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402  (after the environment is set)
import jax.numpy as jnp  # noqa: E402

server = jax.profiler.start_server(options.port)  # kept: it ends with its object


@jax.jit
def work(x):
    return jnp.tanh(x @ x) / 2


def call(n):
    return n


def own_trace():
    try:
        jax.profiler.start_trace(options.own_trace)
        work(x).block_until_ready()
        jax.profiler.stop_trace()
        print("own trace: ok", flush=True)
    except RuntimeError as error:
        print("own trace:", " ".join(str(error).split()), flush=True)


x = work(jnp.ones((options.size, options.size))).block_until_ready()


def step(rounds):
    y = x
    for _ in range(rounds):
        y = work(y)
    return y.block_until_ready()


def rounds_of_a_step():
    """How many rounds take so long: the best of several tries, as the machine may have other work."""
    if not options.fixed_work:
        return 1
    tries = []
    for _ in range(5):
        begin, rounds = time.perf_counter(), 0
        while time.perf_counter() - begin < 0.2:
            step(10)
            rounds += 10
        tries.append(rounds / (time.perf_counter() - begin))
    return max(1, int(max(tries) * options.step_ms / 1000))


rounds = rounds_of_a_step()
print("ready", flush=True)
number = 0
traced = False
while options.steps == 0 or number < options.steps:
    number += 1
    if options.tell_traces and traced != jax.profiler.TraceAnnotation.is_enabled():
        traced = not traced
        print("traced" if traced else "untraced", flush=True)
    begin = time.time_ns()
    if options.number_by_clock:
        number = int(begin / 1e6 // options.step_ms)
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = step(rounds)
        for n in range(options.calls):
            call(n)
        for n in range(options.annotations):
            with jax.profiler.TraceAnnotation("part"):
                pass
        end = (number + 1) * options.step_ms / 1e3 if options.number_by_clock else options.step_ms / 1e3 + begin / 1e9
        left = end - time.time_ns() / 1e9
        if left > 0 and not options.fixed_work:
            time.sleep(left)
    if options.own_trace and number % 50 == 0:
        own_trace()
    if options.log:
        print("step", number, begin, time.time_ns(), flush=True)

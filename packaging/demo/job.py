"""A training job in miniature for `make demo`: real JAX on the CPU, holding the fake chips' device nodes open.

    job.py PROFILER_PORT NODE… [-- FAKE_TPU_HOST ARGUMENT…]

On a TPU libtpu serves the chips' metrics inside the job. Here a child of the job does: what follows `--` is started,
and ends with the job because it reads its standard input.
"""

import subprocess
import sys
import time

import jax
import jax.numpy as jnp


def main() -> None:
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    port, nodes, chips = int(sys.argv[1]), sys.argv[2:split], sys.argv[split + 1 :]
    libtpu = subprocess.Popen([*chips, "--while-stdin"], stdin=subprocess.PIPE) if chips else None
    held = [open(node, "rb") for node in nodes]
    server = jax.profiler.start_server(port)

    @jax.jit
    def train_step(weights, batch):
        return weights - 0.01 * jnp.tanh(batch @ weights) * jnp.mean(weights)

    weights = jnp.ones((512, 512))
    batch = jnp.ones((512, 512))
    train_step(weights, batch).block_until_ready()
    print("ready", flush=True)
    for step in range(1_000_000):
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            weights = train_step(weights, batch)
            weights.block_until_ready()
        time.sleep(0.02)
    del server, held, libtpu


main()

"""Traces a JAX program on the CPU that waits for its input most of each step, or before each one:
jax_load_batch.py FOLDER STEPS [between]"""

import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp

folder, steps = sys.argv[1], int(sys.argv[2])
between = sys.argv[3:] == ["between"]


@jax.jit
def train_step(w, x):
    return w - 0.01 * (x.T @ jnp.tanh(x @ w))


def load_batch():
    with jax.profiler.TraceAnnotation("load_batch"):
        with jax.profiler.TraceAnnotation("decode", shard=3):
            time.sleep(0.01)
        time.sleep(0.04)
        return jnp.ones((64, 64))


w = jnp.ones((64, 64))
jax.block_until_ready(train_step(w, load_batch()))
jax.profiler.start_trace(folder)
for step in range(steps):
    batch = load_batch() if between else None
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        w = jax.block_until_ready(train_step(w, batch if between else load_batch()))
jax.profiler.stop_trace()

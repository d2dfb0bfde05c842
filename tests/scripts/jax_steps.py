"""Traces a few annotated steps of a JAX program on the CPU: jax_steps.py FOLDER STEPS [SLOW]

From the step with the place SLOW on, counted from 0, steps do more and take at least 50 ms longer.
"""

import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp

folder, steps = sys.argv[1], int(sys.argv[2])
slow = int(sys.argv[3]) if len(sys.argv) > 3 else steps


@jax.jit
def train_step(w, x):
    y = jnp.tanh(x @ w)
    return w - 0.01 * (x.T @ y), jnp.sum(y)


@jax.jit
def more(x):
    return jnp.sort(x @ x, axis=0)


w, x = jnp.ones((192, 192)), jnp.ones((192, 192))
jax.block_until_ready((train_step(w, x), more(x)))
options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
jax.profiler.start_trace(folder, profiler_options=options)
for step in range(steps):
    with jax.profiler.StepTraceAnnotation("train", step_num=500 + step):
        w, loss = train_step(w, x)
        jax.block_until_ready((w, loss))
        if step >= slow:
            more(x).block_until_ready()
            time.sleep(0.05)
jax.profiler.stop_trace()

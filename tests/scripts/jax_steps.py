"""Traces a few annotated steps of a JAX program on the CPU: jax_steps.py FOLDER STEPS"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp

folder, steps = sys.argv[1], int(sys.argv[2])


@jax.jit
def train_step(w, x):
    y = jnp.tanh(x @ w)
    return w - 0.01 * (x.T @ y), jnp.sum(y)


w, x = jnp.ones((192, 192)), jnp.ones((192, 192))
jax.block_until_ready(train_step(w, x))
options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
jax.profiler.start_trace(folder, profiler_options=options)
for step in range(steps):
    with jax.profiler.StepTraceAnnotation("train", step_num=500 + step):
        w, loss = train_step(w, x)
        jax.block_until_ready((w, loss))
jax.profiler.stop_trace()

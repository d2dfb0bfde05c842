"""Records a real JAX trace with the Python tracer on: jax_trace.py DIR BYTES [SECONDS]

Runs a small training loop on the CPU, in Python enough to fill the trace, and stops once the host's tracer has
seen about BYTES of events. Prints the trace file's path.
"""

import glob
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
import jax.numpy as jnp

folder, wanted = sys.argv[1], int(sys.argv[2])
# One Python call and its return are one event of about this many bytes.
calls = int(wanted / 15.5)


def leaf(x):
    return x


def branch(x):
    return leaf(leaf(x))


def busy(rounds):
    for at in range(rounds):
        branch(at)


@jax.jit
def train_step(w, x):
    return w - 0.01 * jnp.tanh(x @ w), x


w, x = jnp.ones((128, 128)), jnp.ones((128, 128))
train_step(w, x)[0].block_until_ready()

options = jax.profiler.ProfileOptions()
options.python_tracer_level = 1
options.host_tracer_level = 2
jax.profiler.start_trace(folder, profiler_options=options)
steps, per_step = 200, calls // 3 // 200
for step in range(steps):
    with jax.profiler.StepTraceAnnotation("train", step_num=1000 + step):
        busy(per_step)
        w, x = train_step(w, x)
        w.block_until_ready()
jax.profiler.stop_trace()
print(glob.glob(os.path.join(folder, "plugins/profile/*/*.xplane.pb"))[0])

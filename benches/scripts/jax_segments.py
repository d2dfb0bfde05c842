"""Records one JAX CPU process in segments with the python tracer on: `jax_segments.py FOLDER SECONDS SEGMENTS`."""

import glob
import os
import shutil
import sys
import tempfile
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402  (after the environment is set)
import jax.numpy as jnp  # noqa: E402

folder, seconds, segments = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])


@jax.jit
def work(x):
    return jnp.tanh(x @ x) / 2


def call(n):
    return n


os.makedirs(folder, exist_ok=True)
x = work(jnp.ones((64, 64))).block_until_ready()
number = 0
for segment in range(segments):
    with tempfile.TemporaryDirectory() as logdir:
        with jax.profiler.trace(logdir):
            end = time.time() + seconds
            while time.time() < end:
                number += 1
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    x = work(x).block_until_ready()
                    for n in range(3000):
                        call(n)
        (part,) = glob.glob(f"{logdir}/plugins/profile/*/*.xplane.pb")
        shutil.copy(part, f"{folder}/{segment}.tmp")
        os.rename(f"{folder}/{segment}.tmp", f"{folder}/{segment}.xplane.pb")

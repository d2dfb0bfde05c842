"""Prints as JSON the step numbers of the `train` annotations in an .xplane.pb, as JAX's own reader finds them."""

import json
import sys

from jax.profiler import ProfileData

steps = []
for plane in ProfileData.from_file(sys.argv[1]).planes:
    for line in plane.lines:
        for event in line.events:
            if event.name == "train":
                steps.append(dict(event.stats)["step_num"])
print(json.dumps(sorted(steps)))

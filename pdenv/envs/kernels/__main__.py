"""Compile the environments ahead of their first use: `python -m pdenv.envs.kernels`."""

import time

from pdenv.envs.single import routing

begun = time.perf_counter()
env = routing(scenario="toy", horizon_requests=2)
observation, info = env.reset(seed=0)
env.step(int(info["action_mask"].argmax()))
print(f"pdenv: the environments are ready ({time.perf_counter() - begun:.1f} s)")

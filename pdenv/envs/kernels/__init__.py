"""Compiled parts of the environments: observations, masks and actions, for many environments in one call."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace

from pdenv.sim import compiled as engine


@functools.cache
def compiled() -> SimpleNamespace:
    """The entry points; see `pdenv.sim.compiled`."""
    from pdenv.envs.kernels import act, observe

    functions = {"act_each": act.act_each, "observe_each": observe.observe_each, "take_accruals": observe.take_accruals}
    return engine.entry_points(functions, "environments", 15, engine.SOURCES, Path(__file__).parent)

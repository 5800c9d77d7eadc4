"""Observations for networks: in [−1, 1] by documented scales, and flat."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from pdenv.envs.kernels.features import FEATURES, Feature, Scale
from pdenv.envs.layout import Layout
from pdenv.errors import InputError


class Normalizer:
    """Maps flat observations of a layout into [−1, 1]; there is nothing to fit or to save."""

    def __init__(self, layout: Layout) -> None:
        self.factor = np.ones(layout.size, np.float32)
        self.unit = np.ones(layout.size, np.float32)
        self.logarithmic = np.zeros(layout.size, np.bool_)
        for part, features in FEATURES.items():
            for k, feature in enumerate(features):
                factor, unit = _scale_of(feature)
                layout.parts(self.factor)[part][..., k] = factor
                layout.parts(self.unit)[part][..., k] = unit
                layout.parts(self.logarithmic)[part][..., k] = feature.scale is Scale.LOG
        self.columns = np.flatnonzero(self.logarithmic)
        self.unit = self.unit[self.columns]
        self.low = np.where(layout_low(layout) < 0.0, -1.0, 0.0).astype(np.float32)

    def __call__(self, flat: np.ndarray) -> np.ndarray:
        """`(..., size)` float32 in [−1, 1], a new array."""
        out = flat * self.factor
        part = flat[..., self.columns]
        out[..., self.columns] = np.copysign(np.log1p(np.abs(part) * self.unit), part) * self.factor[self.columns]
        return np.clip(out, -1.0, 1.0, out=out)


def layout_low(layout: Layout) -> np.ndarray:
    """`(size,)` least values of the raw observation."""
    low = np.zeros(layout.size, np.float32)
    for part, features in FEATURES.items():
        layout.parts(low)[part][...] = [feature.least for feature in features]
    return low


def _scale_of(feature: Feature) -> tuple[float, float]:
    """(factor, 1/unit) of a feature."""
    if feature.scale is Scale.FLAG:
        return 1.0, 1.0
    if feature.scale is Scale.SHARE:
        return 1.0 / feature.most, 1.0
    return 1.0 / float(np.log1p(feature.most / feature.scale_unit)), 1.0 / feature.scale_unit


def flatten(layout: Layout, observation: dict[str, np.ndarray]) -> np.ndarray:
    """`(..., size)` float32: the parts of an observation one after the other, as `gymnasium.spaces.flatten` does."""
    rows = [observation[part] for part in layout.shapes]
    lead = rows[0].shape[: rows[0].ndim - len(layout.shapes["cluster"])]
    return np.concatenate([row.reshape(*lead, -1) for row in rows], axis=-1)


def normalized_space(layout: Layout, flat: bool) -> spaces.Box | spaces.Dict:
    """The space of normalised observations."""
    low = Normalizer(layout).low
    if flat:
        return spaces.Box(low, np.ones_like(low), dtype=np.float32)
    parts = layout.parts(low)
    return spaces.Dict({name: spaces.Box(part, np.ones_like(part), dtype=np.float32) for name, part in parts.items()})


def flat_space(layout: Layout) -> spaces.Box:
    """The space of flat raw observations."""
    space = layout.observation_space()
    low = flatten(layout, {name: box.low for name, box in space.items()})  # type: ignore[attr-defined]
    high = flatten(layout, {name: box.high for name, box in space.items()})  # type: ignore[attr-defined]
    return spaces.Box(low, high, dtype=np.float32)


def _raw(env: gym.Env) -> gym.Env:
    """The environment, if its observations are the raw Dict.

    Raises:
        InputError: they are normalised or flat already.
    """
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, NormalizeObservation | FlatObservation):
            message = "its observations are flat or normalised already; FlatObservation(env, normalize=True) does both"
            raise InputError(message, where=type(layer).__name__)
        layer = layer.env
    return env


class NormalizeObservation(gym.ObservationWrapper, gym.utils.RecordConstructorArgs):
    """Every feature in [−1, 1]: flags as they are, shares divided by their largest value, the rest logarithmic.

    `docs/environments.md` gives the unit of each logarithm.
    """

    def __init__(self, env: gym.Env) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, _raw(env))
        self._layout = env.get_wrapper_attr("layout")
        self._normalize = Normalizer(self._layout)
        self.observation_space = normalized_space(self._layout, flat=False)

    def observation(self, observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._layout.parts(self._normalize(flatten(self._layout, observation)))

    def action_masks(self) -> np.ndarray:
        return self.env.get_wrapper_attr("action_masks")()


class FlatObservation(gym.ObservationWrapper, gym.utils.RecordConstructorArgs):
    """One box `(size,)` in place of the Dict, raw or normalised."""

    def __init__(self, env: gym.Env, normalize: bool = False) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, normalize=normalize)
        gym.ObservationWrapper.__init__(self, _raw(env))
        self._layout = env.get_wrapper_attr("layout")
        self._normalize = Normalizer(self._layout) if normalize else None
        self.observation_space = normalized_space(self._layout, flat=True) if normalize else flat_space(self._layout)

    def observation(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        flat = flatten(self._layout, observation)
        return flat if self._normalize is None else self._normalize(flat)

    def action_masks(self) -> np.ndarray:
        return self.env.get_wrapper_attr("action_masks")()

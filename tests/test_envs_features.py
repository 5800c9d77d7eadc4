"""Every feature of the observation says what its table says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from env_draws import draw_environment
from env_policies import PRESETS, eager_random_policy, make, random_action, short
from gymnasium import spaces

from baselines.estimates import iteration_seconds, memory_wait_seconds, prefill_seconds, transfer_seconds
from pdenv.envs.kernels.features import FEATURES, Scale, column
from pdenv.envs.normalize import FlatObservation, NormalizeObservation
from pdenv.envs.single import ClusterEnv
from pdenv.sim import decisions, lists
from pdenv.sim.state import ACTIVE, DRAINING, OFF, WARMING
from pdenv.sim.view import RequestView, View, see, see_request
from pdenv.topology import N_PRECISIONS, PRECISIONS

STAGES = ("kind", "prefill", "decode", "precision", "colocated")


def expected(env: ClusterEnv) -> dict[str, Any]:
    """Features by part and name: dicts for `request` and `cluster`, else one dict an instance or pair."""
    sim = env.simulation
    view, kind = see(sim), decisions.pending(sim)
    request = see_request(sim) if kind in ("route", "pair") else None
    cluster = view.cluster
    return {
        "request": request_features(env, view, request, kind),
        "cluster": cluster_features(env, view),
        "prefill": [prefill_features(env, view, request, p) for p in range(len(cluster.prefill))],
        "decode": [decode_features(env, view, request, d) for d in range(len(cluster.decode))],
        "colocated": [colocated_features(view, request, c) for c in range(len(cluster.colocated))],
        "pair": [
            [pair_features(view, request, p, d) for d in range(len(cluster.decode))]
            for p in range(len(cluster.prefill))
        ],
    }


def state(code: int) -> dict[str, bool]:
    return {"present": True, "active": code == ACTIVE, "warming": code == WARMING, "draining": code == DRAINING}


def request_features(env: ClusterEnv, view: View, request: RequestView | None, kind: str) -> dict[str, float]:
    zero = dict.fromkeys([feature.name for feature in FEATURES["request"]], 0.0)
    told = zero | {name: float(kind == name) for name in ("route", "pair", "scale")}
    if request is None:
        return told
    stage = int(env.fleet.faces[0]["stage"])
    told |= {f"stage_{name}": float(env.layout.mode == "sequential" and stage == k) for k, name in enumerate(STAGES)}
    allowed = (request.wire,) if kind == "pair" else request.precisions
    waited_s = view.now - request.arrival_s
    return told | {
        "prompt_tokens": request.prompt_tokens,
        "predicted_tokens": request.predicted_tokens,
        "waited_s": waited_s,
        "held_s": 0.0 if np.isnan(request.first_hold_s) else view.now - request.first_hold_s,
        "ttft_left_s": env.scenario.sla.ttft_s - waited_s,
        "attempts": request.attempts,
        "priority": request.priority,
        **{f"may_{name}": float(q in allowed) for q, name in enumerate(PRECISIONS)},
        "may_hold": float(request.may_hold),
        "may_reject": float(request.may_reject),
    }


def cluster_features(env: ClusterEnv, view: View) -> dict[str, float]:
    sim, cost, cluster = env.simulation, env.scenario.cost, view.cluster
    before, after = {
        "joint": (1.0, 1.0),
        "standard": (0.0, 1.0),
        "normalised": (1 / env.scenario.sla.ttft_s, 1 / env.scenario.sla.tpot_s),
    }[cost.mode]
    on = sum(i.gpus for i, s in zip(cluster.prefill, view.prefill_state, strict=True) if s != OFF)
    on += sum(i.gpus for i, s in zip(cluster.decode, view.decode_state, strict=True) if s != OFF)
    on += sum(i.gpus for i in cluster.colocated)
    return {
        "gateway": int(sim.block.views["queue"][lists.GATEWAY_QUEUE]["count"]),
        "prefill_busy": view.prefill_busy,
        "prefill_demanded": view.prefill_demanded,
        "decode_memory": view.decode_memory,
        "gpus_on": on / cluster.gpu_budget,
        "ticks_since_scaling": int(sim.block.header["scale_quiet"]),
        "hidden": (cluster.layers - 1) / cluster.layers if cluster.layerwise else 0.0,
        "late_binding": float(env.scenario.kv.decode_binding == "prefill_end"),
        "ttft_limit_s": env.scenario.sla.ttft_s,
        "tpot_limit_s": env.scenario.sla.tpot_s,
        "ttft_step": cost.ttft_step,
        "ttft_slope_per_s": cost.ttft_slope_per_s,
        "tpot_step": cost.tpot_step,
        "tpot_slope_per_s": cost.tpot_slope_per_s,
        "w_prefill": cost.w_prefill * before,
        "w_transfer": cost.w_transfer * before,
        "w_decode": cost.w_decode * after,
        **{f"price_{name}": cost.quality[name] for name in PRECISIONS},
    }


def prefill_features(env: ClusterEnv, view: View, request: RequestView | None, p: int) -> dict[str, float]:
    instance, load = view.cluster.prefill[p], view.prefill[p]
    told = {
        **state(view.prefill_state[p]),
        "requests": load.requests,
        "tokens": load.tokens,
        "work_s": load.work_s,
        "staging": load.kv_bytes / instance.staging_bytes,
    }
    if request is None:
        return told
    return told | {
        "legal": p in request.prefills,
        "chosen": p == request.prefill if request.wire >= 0 else p == int(env.fleet.faces[0]["prefill"]),
        "prefill_s": prefill_seconds(view.cluster.profiles[instance.profile], request.prompt_tokens),
    }


def decode_features(env: ClusterEnv, view: View, request: RequestView | None, d: int) -> dict[str, float]:
    cluster, instance, load = view.cluster, view.cluster.decode[d], view.decode[d]
    told = {
        **state(view.decode_state[d]),
        "requests": load.requests,
        "tokens": load.tokens,
        "kv": load.kv_bytes / instance.kv_bytes,
        "receiving": load.receiving,
        "batch": load.requests / instance.max_batch,
        "store": cluster.kv_bytes_per_token[instance.store_precision] / cluster.kv_bytes_per_token[0],
    }
    if request is None:
        return told
    decode_s = iteration_seconds(view, request, instance, load)
    bound_later = cluster.binding == 1 and request.wire < 0
    legal = env.shown["decode"][0] == d if bound_later else any(d in legal for legal in request.decodes.values())
    return told | {
        "legal": legal,
        "chosen": d == int(env.fleet.faces[0]["decode"]),
        "iteration_s": decode_s,
        "memory_wait_s": memory_wait_seconds(view, request, d, decode_s),
    }


def pair_features(view: View, request: RequestView | None, p: int, d: int) -> dict[str, float]:
    told: dict[str, float] = {"tier": view.cluster.paths[p][d].tier}
    if request is None:
        return told
    seconds = {q: transfer_seconds(view, request, p, d, q) for q in range(N_PRECISIONS)}
    return told | {f"transfer_{name}_s": seconds[q] for q, name in enumerate(PRECISIONS)}


def colocated_features(view: View, request: RequestView | None, c: int) -> dict[str, float]:
    instance, load = view.cluster.colocated[c], view.colocated[c]
    told = {
        "present": True,
        "requests": load.requests,
        "tokens": load.tokens,
        "kv": load.kv_bytes / instance.kv_bytes,
        "receiving": load.receiving,
        "work_s": load.work_s,
        "store": view.cluster.kv_bytes_per_token[instance.store_precision] / view.cluster.kv_bytes_per_token[0],
    }
    if request is None:
        return told
    return told | {
        "legal": c in request.colocated,
        "iteration_s": iteration_seconds(view, request, instance, load),
        "prefill_s": prefill_seconds(view.cluster.profiles[instance.profile], request.prompt_tokens),
    }


def assert_row(part: str, row: np.ndarray, told: dict[str, float]) -> None:
    for feature, value in zip(FEATURES[part], row, strict=True):
        want = np.clip(float(told.get(feature.name, 0.0)), feature.least, feature.most)
        assert value == pytest.approx(want, rel=1e-5, abs=1e-6), f"{part}.{feature.name}"


def assert_features(env: ClusterEnv, observation: dict[str, np.ndarray]) -> None:
    told, shown = expected(env), env.shown
    for part in ("request", "cluster"):
        assert set(told[part]) == {feature.name for feature in FEATURES[part]}
        assert_row(part, observation[part], told[part])
    for part in ("prefill", "decode", "colocated"):
        for i, instance in enumerate(shown[part]):
            assert_row(part, observation[part][i], {} if instance < 0 else told[part][instance])
    for i, p in enumerate(shown["prefill"]):
        for j, d in enumerate(shown["decode"]):
            assert_row("pair", observation["pair"][i, j], {} if p < 0 or d < 0 else told["pair"][p][d])


@pytest.mark.parametrize("seed", range(28))
def test_features_are_what_a_scheduler_sees(seed):
    """By name, against `View`, `RequestView` and the scenario, in live states of random scenarios in every form."""
    env = draw_environment(seed)
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    for _ in range(25):
        assert_features(env, observation)
        observation, _, _, truncated, _ = env.step(random_action(env, rng))
        if truncated:
            observation, _ = env.reset()


@pytest.mark.parametrize("preset", PRESETS)
def test_features_of_the_presets(preset):
    env = make("cluster", short(preset, 60, warmup_s=20.0), interval_s=2.0)
    policy = eager_random_policy(0)
    observation, _ = env.reset(seed=0)
    filled = np.zeros(len(FEATURES["prefill"]), np.bool_)
    for _ in range(60):
        assert_features(env, observation)
        filled |= observation["prefill"].any(axis=0)
        observation, _, _, truncated, _ = env.step(policy(env))
        if truncated:
            break
    assert all(filled[column("prefill", name)] for name in ("requests", "tokens", "work_s", "staging", "prefill_s"))


def test_a_cached_prefix_shows_where_it_is(tmp_path):
    """Later requests repeat the two leading blocks of the first one, which was prefilled on instance 1."""
    prompts = [(1536, [1, 2, 3]), (1100, [1, 2, 9]), (1024, [1, 2]), (2000, [7, 2, 3, 4])]
    rows = [
        {"timestamp": 60_000 * k, "input_length": tokens, "output_length": 2, "hash_ids": blocks}
        for k, (tokens, blocks) in enumerate(prompts * 3)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    memory = {"prefill__0__staging_bytes": 10**9, "decode__0__kv_bytes": 10**9, "kv__block_tokens": 512}
    cached = {"prefill__0__prefix_cache_tokens": 51_200, **memory}
    env = make("routing", short("toy", 4, warmup_s=0.0, **cached), trace=path, evaluation=True, window=0)
    observation, _ = env.reset()
    share = column("prefill", "cached_share")
    for expected_share in (0.0, 1024 / 1100, 1023 / 1024, 0.0):
        assert observation["prefill"][:, share].tolist() == [0.0, pytest.approx(expected_share)]
        observation, _, _, _, _ = env.step(env.layout.index("pair", prefill=1))


def test_chosen_shows_what_earlier_stages_have_fixed():
    env = make("routing", "hetero-links", action_mode="sequential", shuffle_instances=True)
    observation, _ = env.reset(seed=3)
    stage = [column("request", f"stage_{name}") for name in STAGES]
    chosen = {part: column(part, "chosen") for part in ("prefill", "decode")}
    for k, (action, name) in enumerate([(0, "kind"), (2, "prefill"), (1, "decode"), (0, "precision")]):
        assert observation["request"][stage].tolist() == [float(name == other) for other in STAGES]
        assert observation["prefill"][:, chosen["prefill"]].tolist() == [0.0, 0.0, float(k > 1), 0.0, 0.0, 0.0]
        assert observation["decode"][:, chosen["decode"]].tolist() == [0.0, float(k > 2), 0.0]
        before = env.simulation.now
        observation, reward, _, _, info = env.step(action)
        if name != "precision":
            assert env.simulation.now == before and info["dt"] == pytest.approx(0.0 if k else info["dt"])
            assert k == 0 or reward == 0.0


# ---- saturation and scales --------------------------------------------------------------------------------


def test_features_saturate_under_overload():
    """Everything goes to one pair of a cluster with slow steps and little memory: bounds hold and are reached."""
    scenario = short(
        "toy",
        300,
        workload__rate_per_s=400.0,
        prefill__0__staging_bytes=1_800_000,
        decode__0__kv_bytes=1_800_000,
        profiles__toy__prefill={"a_s": 0.01, "b_s": 200.0},
        cost__w_prefill=1e6,
    )
    env = make("routing", scenario, evaluation=True)
    observation, info = env.reset(seed=0)
    pair = env.layout.index("pair")
    for _ in range(250):
        assert env.observation_space.contains(observation)
        observation, _, _, truncated, info = env.step(pair if info["action_mask"][pair] else env.layout.index("hold"))
        if truncated:
            break
    assert observation["prefill"][0, column("prefill", "prefill_s")] == 1e4
    assert observation["prefill"][0, column("prefill", "work_s")] == 1e4
    assert observation["decode"][0, column("decode", "kv")] == 4.0
    assert observation["decode"][0, column("decode", "batch")] == 4.0
    assert observation["cluster"][column("cluster", "w_prefill")] == 1e6
    normalized = NormalizeObservation(env).observation(observation)
    assert normalized["prefill"][0, column("prefill", "work_s")] == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(0, 28, 2))
def test_normalised_features_lie_in_their_space_and_flat_ones_are_the_same(seed):
    env = draw_environment(seed)
    forms = [NormalizeObservation(env), FlatObservation(env), FlatObservation(env, normalize=True)]
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    for _ in range(20):
        normalized, flat, both = (form.observation(observation) for form in forms)
        for form, shown in zip(forms, (normalized, flat, both), strict=True):
            assert form.observation_space.contains(shown)
        assert np.abs(both).max() <= 1.0
        np.testing.assert_array_equal(flat, spaces.flatten(env.observation_space, observation))
        np.testing.assert_array_equal(both, spaces.flatten(forms[0].observation_space, normalized))
        observation, _, _, truncated, _ = env.step(random_action(env, rng))
        if truncated:
            observation, _ = env.reset()


def test_scales_of_the_normalised_form():
    """Flags as they are, shares over their largest value, the rest sign(x)·log(1 + |x|/unit)/log(1 + most/unit)."""
    env = make("routing", "toy")
    wrapped = NormalizeObservation(env)
    rng = np.random.default_rng(0)
    raw = {name: box.low + rng.random(box.shape) * (box.high - box.low) for name, box in env.observation_space.items()}
    raw = {name: part.astype(np.float32) for name, part in raw.items()}
    shown = wrapped.observation({name: part.copy() for name, part in raw.items()})
    for part, features in FEATURES.items():
        for k, feature in enumerate(features):
            x = raw[part][..., k].astype(np.float64)
            logarithm = np.sign(x) * np.log1p(np.abs(x) / feature.scale_unit)
            want = {
                Scale.FLAG: x,
                Scale.SHARE: x / feature.most,
                Scale.LOG: logarithm / np.log1p(feature.most / feature.scale_unit),
            }[feature.scale]
            np.testing.assert_allclose(shown[part][..., k], want, rtol=1e-4, atol=1e-6, err_msg=feature.name)


def test_the_table_of_features_is_sound():
    for part, features in FEATURES.items():
        names = [feature.name for feature in features]
        assert len(set(names)) == len(names), part
        for feature in features:
            assert feature.meaning and feature.unit
            assert -1e9 < feature.least < feature.most < 1e9
            assert feature.scale is not Scale.FLAG or (feature.least, feature.most) == (0.0, 1.0)
            assert feature.least == 0.0 or feature.least == -feature.most
            assert column(part, feature.name) == names.index(feature.name)

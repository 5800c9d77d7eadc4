"""Estimates from what a scheduler sees: prefill, transfer, memory (docs/model.md, sections 1 and 5)."""

from __future__ import annotations

from pdenv.sim.view import Load, RequestView, View
from pdenv.topology import ColocatedInstance, DecodeInstance, Profile, StepLaw

SHORTEST_STEP_S = 1e-6
SPEED_TOKENS = 4096  # length of the prompt by which the speeds of prefill instances are compared


def base_seconds(law: StepLaw, x: float) -> float:
    """The linear or tabulated part of a step law; tables go on linearly beyond both ends."""
    if not law.table_x:
        return law.a_s + law.b_s * x
    k = 0
    while k < len(law.table_x) - 2 and x > law.table_x[k + 1]:
        k += 1
    x0, x1 = law.table_x[k : k + 2]
    y0, y1 = law.table_s[k : k + 2]
    return y0 + (x - x0) * ((y1 - y0) / (x1 - x0))


def prefill_seconds(profile: Profile, prompt_tokens: int) -> float:
    """A prefill step of one whole prompt."""
    n = float(prompt_tokens)
    return max(base_seconds(profile.prefill, n) + profile.prefill.c_s[0] * (n * n), SHORTEST_STEP_S)


def added_prefill_seconds(profile: Profile, prompt_tokens: int) -> float:
    """What a prompt adds to an instance that has work anyway: its step without the fixed part."""
    return prefill_seconds(profile, prompt_tokens) - prefill_seconds(profile, 0)


def speed_seconds(view: View, p: int) -> float:
    """How slow prefill instance p is: what a prompt of SPEED_TOKENS adds to its work."""
    return added_prefill_seconds(view.cluster.profiles[view.cluster.prefill[p].profile], SPEED_TOKENS)


def transfer_seconds(view: View, request: RequestView, p: int, d: int, precision: int) -> float:
    """KV transfer time from p to d if every port of the path were shared evenly with one more flow."""
    path = view.cluster.paths[p][d]
    share = min(view.port_bytes_per_s[k] / (view.port_flows[k] + 1) for k in path.ports)
    size = float(request.prompt_tokens * view.cluster.kv_bytes_per_token[precision])
    return path.latency_s + size * path.cost_s_per_byte[precision] + size / share


def exposed_transfer_seconds(view: View, request: RequestView, p: int, d: int, precision: int) -> float:
    """The part of the transfer that prefill does not hide: all, or layer-wise at least the last layer."""
    whole = transfer_seconds(view, request, p, d, precision)
    if not view.cluster.layerwise:
        return whole
    profile = view.cluster.profiles[view.cluster.prefill[p].profile]
    layers = view.cluster.layers
    hidden = added_prefill_seconds(profile, request.prompt_tokens) * (layers - 1) / layers
    return max(whole - hidden, whole / layers)


def kv_share(view: View, d: int) -> float:
    """Share of a decode instance's KV memory that the prompts of its known requests take."""
    return view.decode[d].kv_bytes / view.cluster.decode[d].kv_bytes


def iteration_seconds(
    view: View, request: RequestView, instance: DecodeInstance | ColocatedInstance, load: Load
) -> float:
    """A decode iteration with the requests that the instance is known to have and this one."""
    law = view.cluster.profiles[instance.profile].decode
    store = instance.store_precision
    tokens = load.kv_bytes // view.cluster.kv_bytes_per_token[store] + request.prompt_tokens
    return base_seconds(law, min(load.requests + 1, instance.max_batch)) + law.c_s[store] * tokens


def memory_wait_seconds(view: View, request: RequestView, d: int, decode_s: float) -> float:
    """Wait for decode memory: what is over capacity, at the rate at which sequences leave."""
    instance = view.cluster.decode[d]
    prompt_bytes = request.prompt_tokens * view.cluster.kv_bytes_per_token[instance.store_precision]
    over = (view.decode[d].kv_bytes + prompt_bytes) / instance.kv_bytes - 1.0
    return over * request.predicted_tokens * decode_s if over > 0.0 else 0.0


def arrival_seconds(view: View, request: RequestView, p: int, d: int, precision: int) -> float:
    """From prefill end to a place in decode memory: the transfer and the wait for room."""
    decode_s = iteration_seconds(view, request, view.cluster.decode[d], view.decode[d])
    return transfer_seconds(view, request, p, d, precision) + memory_wait_seconds(view, request, d, decode_s)

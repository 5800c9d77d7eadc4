"""Step times (docs/model.md, section 1)."""

from __future__ import annotations

from pdenv.sim.layout import kernel
from pdenv.sim.state import N_PRECISIONS, batch, profile

SHORTEST_STEP_S = 1e-6


@kernel
def prefill_table(law, x):
    """Piecewise-linear in x = new tokens, extrapolated linearly at both ends."""
    k = 0
    while k < law.prefill_knots - 2 and x > law.prefill_x[k + 1]:
        k += 1
    x0 = law.prefill_x[k]
    y0 = law.prefill_y[k]
    return y0 + (x - x0) * ((law.prefill_y[k + 1] - y0) / (law.prefill_x[k + 1] - x0))


@kernel
def decode_table(law, x):
    """Piecewise-linear in x = sequences, extrapolated linearly at both ends."""
    k = 0
    while k < law.decode_knots - 2 and x > law.decode_x[k + 1]:
        k += 1
    x0 = law.decode_x[k]
    y0 = law.decode_y[k]
    return y0 + (x - x0) * ((law.decode_y[k + 1] - y0) / (law.decode_x[k + 1] - x0))


@kernel
def prefill_seconds(S, k, tokens, squares):
    """Duration of a prefill batch of `tokens` new tokens; `squares` is Σ((done + x)² − done²)."""
    law = profile(S, k)
    if law.prefill_knots > 0:
        t = prefill_table(law, float(tokens))
    else:
        t = law.prefill_a + law.prefill_b * tokens
    return max(t + law.prefill_c * squares, SHORTEST_STEP_S)


@kernel
def decode_base_seconds(S, k, sequences):
    """The part of an iteration that depends on the number of sequences."""
    law = profile(S, k)
    if law.decode_knots > 0:
        return decode_table(law, float(sequences))
    return law.decode_a + law.decode_b * sequences


@kernel
def iteration_seconds(S, b):
    """Duration of the batch's next iteration with its present sequences."""
    it = batch(S, b)
    law = profile(S, it.profile)
    t = decode_base_seconds(S, it.profile, it.active)
    for q in range(N_PRECISIONS):
        t += law.decode_c[q] * it.context[q]
    return max(t, SHORTEST_STEP_S)


@kernel
def iteration_slope_s(S, b):
    """Growth of the duration from one iteration to the next."""
    it = batch(S, b)
    law = profile(S, it.profile)
    g = 0.0
    for q in range(N_PRECISIONS):
        g += law.decode_c[q] * it.count[q]
    return g

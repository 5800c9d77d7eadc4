"""Writes the tables of `docs/environments.md` from the code: `python -m pdenv.envs.docs docs/environments.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from pdenv.envs.kernels.features import FEATURES, Feature, Scale
from pdenv.envs.layout import KINDS, SCALINGS
from pdenv.sim.state import TERMS
from pdenv.topology import PRECISIONS

_SHAPES = {
    "request": "`(F_r,)`: the decision, and the request that it is about",
    "prefill": "`(P, F_p)`: prefill instances",
    "decode": "`(D, F_d)`: decode instances",
    "pair": "`(P, D, F_l)`: what lies between them",
    "colocated": "`(H, F_h)`: co-located instances",
    "cluster": "`(F_g,)`: the cluster, and what cost is made of",
}

_MEANING = {
    "prefill": "part 1 of joint TPOT: from arrival to the end of prefill; 0 in mode `standard`",
    "transfer": "part 2: from there to the first decode iteration; 0 in mode `standard`",
    "decode": "part 3: mean decode time of a token; in mode `standard` standard TPOT",
    "ttft_penalty": "`ttft_step` when the TTFT limit passes, `ttft_slope_per_s` after it until the first token",
    "tpot_penalty": "`tpot_step` when `tpot_s·(N − 1)` after the first token passes, `tpot_slope_per_s` until the "
    "last token",
    "rejection_penalty": "`rejection` for a rejected request",
    "failure_penalty": "`failure` for a request that is too large or out of memory; at the end of an evaluation also "
    "for each that has not finished",
    "quality": "`quality` of the coarser of wire and store precision, at the decision; given back where a drain "
    "returns the request to the gateway",
    "gpu": "`gpu_hour` for each GPU-hour of instances that are not off",
    "churn": "`churn` for each instance switched on or drained",
}


def feature_tables() -> str:
    """A table for each part of the observation."""
    parts = []
    for part, shape in _SHAPES.items():
        rows = [f"#### `{part}` {shape}\n", "| # | feature | unit | range | normalised | meaning |"]
        rows.append("| --- | --- | --- | --- | --- | --- |")
        for k, it in enumerate(FEATURES[part]):
            cells = (str(k), f"`{it.name}`", it.unit, f"{it.least:g} … {it.most:g}", _normalised(it), it.meaning)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _normalised(feature: Feature) -> str:
    if feature.scale is Scale.FLAG:
        return "x"
    if feature.scale is Scale.SHARE:
        return f"x / {feature.most:g}"
    return f"log, {feature.scale_unit:g}"


def action_table() -> str:
    """The `scale` actions by number."""
    rows = ["| number | prefill | decode | flip |", "| --- | --- | --- | --- |"]
    flips = ("–", "prefill → decode", "decode → prefill")
    rows += [f"| {k} | {p:+d} | {d:+d} | {flips[flip]} |" for k, (p, d, flip) in enumerate(SCALINGS)]
    kinds = ", ".join(f"{k} {name}" for k, name in enumerate(KINDS))
    precisions = ", ".join(f"{k} {name}" for k, name in enumerate(PRECISIONS))
    return f"Kinds: {kinds}. Precisions: {precisions}. Scaling actions:\n\n" + "\n".join(rows)


def term_table() -> str:
    """The terms of the reward."""
    rows = ["| term | what accrues |", "| --- | --- |"]
    return "\n".join(rows + [f"| `{name}` | {_MEANING[name]} |" for name in TERMS])


def filled(page: str) -> str:
    """The page with its tables written anew."""
    for name, table in (("features", feature_tables()), ("actions", action_table()), ("terms", term_table())):
        first, last = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(first)
        _, found, after = rest.partition(last)
        assert found, name
        page = f"{before}{first}{table}\n{last}{after}"
    return page


if __name__ == "__main__":
    from pdenv.atomic import write_text

    path = Path(sys.argv[1])
    write_text(path, filled(path.read_text(encoding="utf-8")))

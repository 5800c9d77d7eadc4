"""What a scenario may not say: one line a problem, with file, line, key and remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdenv.errors import InputError
from pdenv.scenario import Scenario, load_scenario

GOOD = load_scenario("toy").to_yaml()
COLOCATED = {"gpu": "h100", "tensor_parallel": 1, "profile": "toy", "kv_bytes": 32_000_000}


def refusal(overrides: dict[str, Any], preset: str = "toy") -> str:
    with pytest.raises(InputError) as caught:
        load_scenario(preset, overrides)
    return str(caught.value)


IMPOSSIBLE = [
    ({"decode": [], "prefill": []}, "decode: there is no decode and no co-located instance; add"),
    ({"decode": [], "colocated": [COLOCATED]}, "prefill: prefill instances have no decode instance"),
    ({"prefill": []}, "decode: decode instances have no prefill instance"),
    (
        {"prefill.0.active": 0},
        "prefill.0.active: no prefill instance is active at the start; set active to 1",
    ),
    ({"decode.0.active": 0}, "decode.0.active: no decode instance is active"),
    ({"prefill.0.active": 3}, "prefill.0.active: is 3, more than count = 2"),
    (
        {"prefill.0.tensor_parallel": 16},
        "prefill.0.tensor_parallel: is 16; a node has 8 GPUs: use 1, 2, 4 or 8",
    ),
    ({"prefill.0.tensor_parallel": 3}, "prefill.0.tensor_parallel: is 3; a node has 8 GPUs"),
    ({"prefill.0.tensor_parallel": 0}, "prefill.0.tensor_parallel: is 0; a node has 8 GPUs"),
    ({"prefill.0.gpu": "h1000"}, "prefill.0.gpu: unknown GPU 'h1000'; did you mean 'h100'?"),
    ({"decode.0.profile": "toi"}, "decode.0.profile: unknown profile 'toi'; did you mean 'toy'?"),
    ({"profiles": {}}, "prefill.0.profile: unknown profile 'toy'; define it under profiles"),
    ({"model": "llama-3.1-70"}, "model: unknown model 'llama-3.1-70'; did you mean 'llama-3.1-70b'?"),
    ({"network.link": "rocket"}, "network.link: unknown link 'rocket'; did you mean 'roce'?"),
    ({"prefill.0.rack": "a"}, "prefill.0.rack: unknown rack 'a'; define it under network.racks"),
    ({"network.racks": {"aa": {}}, "prefill.0.rack": "ab"}, "unknown rack 'ab'; did you mean 'aa'?"),
    ({"network.racks": {"a": {}}, "decode.0.racks": ["a"]}, "decode.0.racks: names 1 racks for 2 instances"),
    (
        {"network.racks": {"a": {}}, "decode.0.rack": "a", "decode.0.racks": ["a", "a"]},
        "both given; keep one",
    ),
    ({"network.racks": {"a": {}, "b": {}}}, "prefill.0.rack: is missing; say in which rack it stands: a, b"),
    (
        {"prefill.0.gpu": "l40s", "prefill.0.nvlink_domain": "n"},
        "prefill.0.nvlink_domain: l40s has no NVLink",
    ),
    ({"prefill.0.nic_bytes_per_s": 0}, "prefill.0.nic_bytes_per_s: is 0; must be number ≥ 1"),
    ({"network.spine_bytes_per_s": 0}, "network.spine_bytes_per_s: is 0; must be number ≥ 1"),
    ({"network.racks": {"a": {"uplink_bytes_per_s": 0}}}, "network.racks.a.uplink_bytes_per_s: is 0"),
    ({"network.efficiency": 0}, "network.efficiency: is 0; must be number > 0 and ≤ 1"),
    ({"network.efficiency": 1.01}, "network.efficiency: is 1.01; must be number > 0 and ≤ 1"),
    (
        {"prefill.0.staging_bytes": 10**12},
        "prefill.0.staging_bytes: is 1000 GB, more than the 80 GB of 1 × h100",
    ),
    ({"decode.0.kv_bytes": 10**11}, "decode.0.kv_bytes: is 100 GB, more than the 80 GB"),
    (
        {"decode.0.kv_bytes": 15_999},
        "decode.0.kv_bytes: is 15999 bytes, less than the 16000 bytes of a single",
    ),
    ({"prefill.0.staging_bytes": 1000}, "prefill.0.staging_bytes: is 1000 bytes, less than the 16000 bytes"),
    ({"prefill.0.prefix_cache_tokens": 1001}, "prefill.0.prefix_cache_tokens: needs 0.016016 GB of KV"),
    (
        {"workload.lengths.prompt_tokens": 1001},
        "workload.lengths.prompt_tokens: is 1001: its KV with 10 output",
    ),
    ({"workload.lengths.output_tokens": 1902}, "use at most 99 tokens"),
    ({"prefill.0.staging_bytes": "null"}, "prefill.0.staging_bytes: is needed: the catalog does not know"),
    (
        {"prefill.0.profile": "null"},
        "prefill.0.profile: is needed: the catalog has no step times for model 'toy'",
    ),
    (
        {"kv.decode_binding": "prefill_end", "network.overlap": "layer_wise"},
        "network.overlap: cannot be layer_wise",
    ),
    ({"kv.decode_binding": "prefill_end", "kv.reserve": "dispatch"}, "kv.reserve: cannot be dispatch"),
    ({"control.scrape_delay_s": 1}, "control.scrape_delay_s: is 1; it must be below scrape_interval_s = 0"),
    ({"control.scrape_interval_s": 2, "control.scrape_delay_s": 2}, "must be below scrape_interval_s = 2"),
    ({"quality.tiers.internal.share": 0.4}, "quality.tiers: shares sum to 1.1; they must sum to 1"),
    ({"quality.tiers": {}}, "quality.tiers: is {}"),
    (
        {"decode.0.store": "fp8"},
        "quality.tiers.high-value.precisions: no instance stores bf16, so nobody can",
    ),
    ({"scaling.gpu_budget": 3}, "scaling.gpu_budget: is 3, but 4 GPUs are active at the start"),
    (
        {"colocated": [{**COLOCATED, "max_batch": 256, "max_batch_tokens": 256}]},
        "colocated.0.max_batch_tokens: is 256; it must exceed max_batch = 256",
    ),
    (
        {"cost.mode": "standard", "cost.ttft_slope_per_s": 0},
        "cost.ttft_slope_per_s: is 0; with mode: standard",
    ),
    ({"control.allow_reject": True, "cost.rejection": 1}, "cost.rejection: is 1; it must be at least"),
    (
        {"models.toy.kv_bytes_per_token": {"bf16": 4}},
        "models.toy.kv_bytes_per_token: no size for fp8, int4, nvfp4",
    ),
    ({"models.toy.kv_bytes_per_token": 0}, "models.toy.kv_bytes_per_token.bf16: is 0"),
    ({"profiles.toy.decode.c_s": {"bf16": 1}}, "profiles.toy.decode.c_s: no slope for fp8, int4, nvfp4"),
    ({"profiles.toy.prefill.table_x": [1]}, "profiles.toy.prefill.table_s: has 0 values for 1 of table_x"),
    ({"profiles.toy.prefill": {"table_x": [1], "table_s": [1]}}, "table_x: has one point; give at least two"),
    (
        {"profiles.toy.prefill": {"table_x": [2, 1], "table_s": [1, 1]}},
        "must be 0 or more and strictly increasing",
    ),
    ({"profiles.toy.prefill": {"table_x": [1, 2], "table_s": [0, 1]}}, "table_s: must be above 0 s"),
    (
        {"profiles.toy.prefill": {"table_x": [1, 2], "table_s": [1, 2], "a_s": 1}},
        "a table replaces a_s and b_s",
    ),
]


@pytest.mark.parametrize(("overrides", "expected"), IMPOSSIBLE, ids=[expected[:40] for _, expected in IMPOSSIBLE])
def test_impossible_scenarios_are_refused(overrides, expected):
    assert expected in refusal(overrides)


def test_a_model_that_does_not_fit_its_gpus_is_refused():
    text = refusal(
        {"decode.0.tensor_parallel": 1, "decode.0.weights": "bf16", "decode.0.kv_bytes": "null"},
        "operating-point",
    )
    assert "decode.0.tensor_parallel: model llama-3.1-70b in bf16 needs" in text and "raise tensor_parallel" in text


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"workload.rate": 3}, "override workload.rate: workload.rate: unknown key 'rate'"),
        ({"workload.rate_per_z": 3}, "unknown key 'rate_per_z'; did you mean 'rate_per_s'?"),
        ({"prefil.0.count": 3}, "unknown key 'prefil'; did you mean 'prefill'?"),
        ({"prefill.0.cuont": 3}, "unknown key 'cuont'; did you mean 'count'?"),
        ({"prefill.2.count": 3}, "override prefill.2.count: prefill has 1 items, counted from 0"),
        ({"prefill.count": 3}, "prefill is a list; write prefill.0 for its first item"),
        ({"name.x": 3}, "name has no keys; it is 'toy'"),
        ({"prefill.0.count": "[1"}, "override prefill.0.count:1: not valid YAML"),
        ({"prefill.0.count": "two"}, "prefill.0.count: is 'two'; must be a valid integer"),
        (
            {"workload.lengths.kind": "uniform"},
            "workload.lengths: kind must be one of fixed, lognormal, quantiles",
        ),
        ({"": 1}, "unknown key ''"),
    ],
)
def test_bad_overrides_name_the_key_and_the_nearest_one(overrides, expected):
    assert expected in refusal(overrides)


def _numbers(tree: Any, place: str = "") -> list[str]:
    """Dotted places of all numbers of a tree, truth values excepted."""
    if isinstance(tree, dict):
        return [p for key, value in tree.items() for p in _numbers(value, f"{place}.{key}")]
    if isinstance(tree, list):
        return [p for i, value in enumerate(tree) for p in _numbers(value, f"{place}.{i}")]
    return [place[1:]] if isinstance(tree, int | float) and not isinstance(tree, bool) else []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), ".nan", "-.inf", "nan", "-1", "true"])
def test_no_number_may_be_nan_infinite_negative_or_a_truth_value(value):
    places = [p for p in _numbers(yaml.safe_load(GOOD)) if value != "true" or not p.startswith(("w", "target"))]
    assert len(places) > 50
    for place in places:
        assert place.split(".")[0] in refusal({place: value}), place


# ---- files ---------------------------------------------------------------------------------------


def refused_file(tmp_path, text: str) -> str:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        load_scenario(file)
    return str(caught.value).replace(str(tmp_path) + "/", "")


def test_problems_come_one_a_line_in_the_order_of_the_file(tmp_path):
    text = GOOD.replace("efficiency: 1.0", "efficiency: 1.5").replace("max_batch: 16", "max_batsh: 16")
    rows = refused_file(tmp_path, "modle: x\n" + text).splitlines()
    lines = [int(re.match(r"bad\.yaml:(\d+): ", row).group(1)) for row in rows]
    assert lines == sorted(lines) and len(rows) == 3
    assert rows[0] == "bad.yaml:1: modle: unknown key 'modle'; did you mean 'model'?"
    assert rows[1].endswith("decode.0.max_batsh: unknown key 'max_batsh'; did you mean 'max_batch'?")
    assert rows[2].endswith("network.efficiency: is 1.5; must be number > 0 and ≤ 1")
    source = ("modle: x\n" + text).splitlines()
    assert "max_batsh" in source[lines[1] - 1] and "efficiency: 1.5" in source[lines[2] - 1]


def test_rules_between_keys_name_the_line_too(tmp_path):
    text = GOOD.replace("drain_max_s: 10.0", "gpu_budget: 1", 1)
    line = text.splitlines().index("  gpu_budget: 1") + 1
    assert refused_file(tmp_path, text).startswith(f"bad.yaml:{line}: scaling.gpu_budget: is 1, but 4 GPUs")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nsla: {}\nname: b\n", "bad.yaml:3: not valid YAML: key 'name' is given twice; keep one"),
        ("sla: {ttft_s: 1, ttft_s: 2}\n", "bad.yaml:1: not valid YAML: key 'ttft_s' is given twice"),
        ("name: [1\n", "bad.yaml:2: not valid YAML"),
        ("- a\n", "bad.yaml:1: is not a mapping"),
        (
            "name: !!python/object:os.system x\n",
            "bad.yaml:1: not valid YAML: could not determine a constructor",
        ),
        ("name: 2001-99-99\n", "not valid YAML: month must be in 1..12"),
        ("a: \x07\n", "not valid YAML"),
        ("a: " + "[" * 5000 + "\n", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML: but found another document"),
        ("workload: &w [*w]\ndecode: 3\n", "workload: is [[[[[[[...]]]]]]]; must be a mapping"),
        ("decode: 3\n", "workload: is missing; what arrives"),
        ("decode: 3\n", "bad.yaml:1: decode: is 3; must be a list"),
    ],
)
def test_bad_files(tmp_path, text, expected):
    assert expected in refused_file(tmp_path, text)


def test_an_unknown_scenario_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown scenario 'operating-pint'; did you mean 'operating-point'\?"):
        load_scenario("operating-pint")


SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def only_input_error(path: str, overrides: dict[str, Any] | None = None) -> None:
    try:
        assert isinstance(load_scenario(path, overrides), Scenario)
    except InputError as error:
        assert str(error).strip()


@SETTINGS
@given(text=st.text(max_size=200) | st.text(alphabet=" \n:-{}[]&*!|>'\"%@,#?ab0.e<~", max_size=80))
def test_any_text_gives_a_scenario_or_an_input_error(tmp_path, text):
    file = tmp_path / "fuzz.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    only_input_error(str(file))


@SETTINGS
@given(data=st.data())
def test_a_damaged_scenario_gives_a_scenario_or_an_input_error(tmp_path, data):
    start = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(start, min(len(GOOD), start + 12)))
    junk = data.draw(st.text(max_size=4) | st.sampled_from(["-1", "1e400", "[]", "{}", "null", "0", "x: ", "\n"]))
    file = tmp_path / "damaged.yaml"
    file.write_text(GOOD[:start] + junk + GOOD[end:], encoding="utf-8", errors="replace")
    only_input_error(str(file))


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
TREES = st.recursive(
    LEAVES,
    lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=4), t, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*_numbers(yaml.safe_load(GOOD)), *Scenario.model_fields, "workload.lengths", "prefill.0"])


@SETTINGS
@given(key=KEYS, value=TREES)
def test_any_override_gives_a_scenario_or_an_input_error(key, value):
    only_input_error("toy", {key: value})

"""Scenarios: presets, loading, overrides, paths and ports by hand, round trip."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from pdenv import catalog, latency
from pdenv.errors import InputError
from pdenv.scenario import Scenario, load_scenario, scenario_names, schema
from pdenv.topology import PRECISIONS, TIERS


def build(**changes: object) -> Scenario:
    """The toy preset with top-level sections replaced."""
    tree = yaml.safe_load(load_scenario("toy").to_yaml())
    return Scenario.model_validate({**tree, **changes})


# ---- presets -------------------------------------------------------------------------------------


def test_the_presets_are_the_promised_ones():
    assert scenario_names() == (
        "burst-scaling",
        "hetero-gpus",
        "hetero-links",
        "homogeneous",
        "operating-point",
        "precision-budget",
        "short-chat",
        "stale-metrics",
        "toy",
    )


@pytest.mark.parametrize("name", scenario_names())
def test_preset_gives_a_consistent_cluster(name):
    scenario = load_scenario(name)
    cluster = scenario.cluster()
    assert scenario.name == name
    assert len(cluster.paths) == len(cluster.prefill) == sum(g.count for g in scenario.prefill)
    assert all(len(row) == len(cluster.decode) == sum(g.count for g in scenario.decode) for row in cluster.paths)
    for row in cluster.paths:
        for path in row:
            assert 2 <= len(path.ports) <= 5
            assert all(0 <= port < len(cluster.ports) for port in path.ports)
            assert len(path.cost_s_per_byte) == len(PRECISIONS)
    for instance in (*cluster.prefill, *cluster.decode):
        assert 0 <= instance.profile < len(cluster.profiles)
        assert not cluster.profiles[instance.profile].estimate
    for port in cluster.ports:
        assert 0 < port.bytes_per_s <= port.line_bytes_per_s


@pytest.mark.parametrize("name", scenario_names())
def test_round_trip_through_yaml(name, tmp_path):
    scenario = load_scenario(name)
    file = tmp_path / "copy.yaml"
    file.write_text(scenario.to_yaml())
    again = load_scenario(file)
    assert again == scenario
    assert again.cluster() == scenario.cluster()
    assert pickle.loads(pickle.dumps(scenario)) == scenario


def test_operating_point_has_a_cut_of_exactly_100_gb_per_s_that_every_path_crosses():
    scenario = load_scenario("operating-point")
    cluster = scenario.cluster()
    assert scenario.min_cut_bytes_per_s(line=True) == 100e9
    assert scenario.min_cut_bytes_per_s() == pytest.approx(75e9)
    ingress = {path.ports[-1] for row in cluster.paths for path in row}
    assert sum(cluster.ports[port].line_bytes_per_s for port in ingress) == 100e9
    assert {cluster.ports[port].name for port in ingress} == {"decode-0.nic_in", "decode-1.nic_in"}


def test_operating_point_is_made_of_unequal_paths_and_is_at_its_gpu_budget():
    scenario = load_scenario("operating-point")
    cluster = scenario.cluster()
    local, remote = cluster.paths[0][0], cluster.paths[0][1]
    assert len(local.ports) == 2 and len(remote.ports) == 5
    assert remote.latency_s > local.latency_s
    narrow = min(cluster.ports[port].bytes_per_s for port in remote.ports)
    assert narrow < min(cluster.ports[port].bytes_per_s for port in local.ports)
    assert cluster.gpu_budget == 56 == sum(i.gpus for i in (*cluster.prefill, *cluster.decode))
    assert cluster.layerwise and cluster.layers == 80


def test_hetero_links_has_close_pairs_and_pairs_that_cross_racks():
    cluster = load_scenario("hetero-links").cluster()
    tiers = [TIERS[path.tier] for row in cluster.paths for path in row]
    assert len(tiers) == 18
    assert (tiers.count("nvlink"), tiers.count("nic"), tiers.count("rack")) == (2, 6, 10)


def test_toy_by_hand():
    cluster = load_scenario("toy").cluster()
    assert cluster.kv_bytes_per_token == (16000, 8000, 4000, 4500)
    prefill, decode = cluster.prefill[0], cluster.decode[0]
    profile = cluster.profiles[prefill.profile]
    assert profile.prefill.a_s + 100 * profile.prefill.b_s == pytest.approx(0.11)
    assert profile.decode.a_s + 4 * profile.decode.b_s == pytest.approx(0.014)
    assert prefill.staging_bytes == 1000 * 16000 and decode.kv_bytes == 2000 * 16000
    path = cluster.paths[0][0]
    assert 100 * 16000 / cluster.ports[path.ports[0]].bytes_per_s == pytest.approx(0.1)
    # BF16 is neither converted nor posted; FP8 is quantised and dequantised at 80 MB/s.
    assert path.cost_s_per_byte[0] == 0.0
    assert path.cost_s_per_byte[1] * 100 * 8000 == pytest.approx(0.02)
    assert load_scenario("toy").min_cut_bytes_per_s() == 32e6


# ---- loading and overrides -----------------------------------------------------------------------


def test_a_string_override_is_read_as_yaml():
    changed = load_scenario("toy", {"workload.rate_per_s": "3e0", "prefill.0.count": "4", "kv.mixed_store": "true"})
    assert changed.workload.rate_per_s == 3.0
    assert changed.prefill[0].count == 4
    assert changed.kv.mixed_store is True
    assert load_scenario("toy").prefill[0].count == 2


def test_override_of_one_default_tier_keeps_the_others():
    changed = load_scenario("toy", {"quality.tiers.internal.share": 0.2, "quality.tiers.user-facing.share": 0.7})
    assert list(changed.quality.tiers) == ["internal", "user-facing", "high-value"]
    assert changed.quality.tiers["high-value"].precisions == ("bf16",)


def test_override_can_replace_a_section_and_name_a_new_entry():
    changed = load_scenario(
        "toy",
        {
            "workload.lengths": {"kind": "fixed", "prompt_tokens": 7, "output_tokens": 2},
            "network.racks.east.uplink_bytes_per_s": 5,
            "sla": "{ttft_s: 2, tpot_s: 1}",
        },
    )
    assert changed.workload.lengths.prompt_tokens == 7
    assert changed.network.racks["east"].uplink_bytes_per_s == 5.0
    assert changed.sla.ttft_s == 2.0


def test_numbers_that_pyyaml_reads_as_text_are_numbers(tmp_path):
    text = load_scenario("toy").to_yaml()
    text = text.replace("nic_bytes_per_s: 16000000.0", "nic_bytes_per_s: 4e11")
    text = text.replace("staging_bytes: 16000000", "staging_bytes: 16e6")
    file = tmp_path / "s.yaml"
    file.write_text(text)
    scenario = load_scenario(str(file))
    assert scenario.prefill[0].nic_bytes_per_s == 4e11
    assert scenario.prefill[0].staging_bytes == 16_000_000


def test_a_scenario_is_frozen():
    scenario = load_scenario("toy")
    with pytest.raises(ValidationError):
        scenario.name = "other"
    assert copy.deepcopy(scenario) == scenario


def test_schema_names_every_section():
    assert set(schema()["properties"]) == set(Scenario.model_fields)
    assert schema()["$defs"]["Network"]["additionalProperties"] is False


# ---- instances -----------------------------------------------------------------------------------


def test_defaults_come_from_the_catalog():
    scenario = load_scenario("operating-point", {"decode.0": {"count": 2, "gpu": "h100", "racks": ["a", "b"]}})
    cluster = scenario.cluster()
    b200, h100 = catalog.gpu("b200"), catalog.gpu("h100")
    assert cluster.prefill[0].staging_bytes == latency.kv_capacity_bytes("llama-3.1-70b", "b200", 8, "fp8")
    assert cluster.decode[1].kv_bytes == latency.kv_capacity_bytes("llama-3.1-70b", "h100", 8, "fp8")
    assert cluster.prefill[0].usd_per_hour == pytest.approx(8 * b200.usd_per_hour)
    assert cluster.prefill[0].busy_w == 8 * b200.tdp_w and cluster.prefill[0].idle_w == 8 * b200.idle_w
    egress = cluster.ports[cluster.paths[0][0].ports[0]]
    assert egress.line_bytes_per_s == 8 * b200.nic_bytes_per_s
    assert egress.bytes_per_s == pytest.approx(0.75 * egress.line_bytes_per_s)
    assert cluster.ports[cluster.paths[0][0].ports[1]].line_bytes_per_s == 8 * h100.nic_bytes_per_s
    assert cluster.profiles[cluster.decode[0].profile] == latency.profile("llama-3.1-70b", "h100", 8, "fp8", "bf16")


def test_groups_expand_in_order_with_the_first_ones_active():
    scenario = load_scenario(
        "operating-point",
        {"prefill.0.active": 2, "kv.block_tokens": 100, "prefill.0.prefix_cache_tokens": 1099},
    )
    cluster = scenario.cluster()
    assert [i.active for i in cluster.prefill] == [True, True, False, False, False]
    assert [i.rack for i in cluster.prefill] == [0, 0, 0, 1, 1]
    assert cluster.prefill[0].prefix_cache_blocks == 10
    assert cluster.tier_precisions == (0b1111, 0b0011, 0b0001)
    # only what is on can send: 50 GB/s within rack a, and 30 GB/s over its uplink to rack b
    assert scenario.min_cut_bytes_per_s(line=True) == 80e9


def test_piggyback_of_a_group_replaces_the_profiles():
    group = {"gpu": "h100", "tensor_parallel": 8, "piggyback": 0.25}
    scenario = load_scenario("operating-point", {"colocated": [{**group, "rack": "a"}], "scaling.gpu_budget": 64})
    cluster = scenario.cluster()
    assert cluster.profiles[cluster.colocated[0].profile].piggyback == 0.25
    assert cluster.profiles[cluster.decode[0].profile].piggyback != 0.25


def test_colocated_twin_has_the_same_gpus_and_no_pools():
    scenario = load_scenario("operating-point")
    twin = scenario.colocated_twin()
    cluster = twin.cluster()
    assert not twin.prefill and not twin.decode and cluster.ports[-1].name == "spine"
    assert [i.gpus for i in cluster.colocated] == [8] * 7
    assert [i.rack for i in cluster.colocated] == [0, 0, 0, 1, 1, 0, 1]
    names = [cluster.profiles[i.profile].name for i in cluster.colocated]
    assert [("b200" in name, "h100" in name) for name in names] == [(True, False)] * 5 + [(False, True)] * 2
    # prefill GPUs get all that HBM leaves; decode GPUs keep what the scenario gives them
    assert cluster.colocated[0].kv_bytes == latency.kv_capacity_bytes("llama-3.1-70b", "b200", 8, "fp8")
    assert cluster.colocated[6].kv_bytes == 360_000_000_000
    assert twin.workload == scenario.workload and twin.sla == scenario.sla
    assert twin.min_cut_bytes_per_s() == 0.0


def test_colocated_twin_of_a_partly_active_pool_uses_the_active_gpus():
    twin = load_scenario("operating-point", {"prefill.0.active": 4}).colocated_twin()
    assert [i.rack for i in twin.cluster().colocated] == [0, 0, 0, 1, 0, 1]


# ---- ports and paths -----------------------------------------------------------------------------

PORTS = {
    "prefill": [
        {"gpu": "h100", "tensor_parallel": 4, "rack": "x", "nvlink_domain": "n", "profile": "toy",
         "nic_bytes_per_s": 10e9, "staging_bytes": 10**9},
        {"gpu": "h100", "tensor_parallel": 4, "rack": "y", "profile": "toy", "nic_bytes_per_s": 10e9,
         "staging_bytes": 10**9},
    ],
    "decode": [
        {"gpu": "h100", "tensor_parallel": 2, "rack": "x", "nvlink_domain": "n", "profile": "toy",
         "nic_bytes_per_s": 20e9, "kv_bytes": 10**9, "store": "fp8"},
        {"gpu": "h100", "tensor_parallel": 8, "rack": "z", "profile": "toy", "nic_bytes_per_s": 20e9,
         "kv_bytes": 10**9},
    ],
    "network": {
        "link": "roce", "efficiency": 0.5, "latency_s": 1e-3, "cross_rack_latency_s": 2e-3, "op_s": 1e-6,
        "block_bytes": 1000, "spine_bytes_per_s": 7e9,
        "racks": {"x": {"uplink_bytes_per_s": 4e9}, "y": {}, "z": {"downlink_bytes_per_s": 6e9}},
    },
    "kv": {"quantise_bytes_per_s": 1e9, "dequantise_bytes_per_s": 2e9},
}  # fmt: skip


def test_paths_by_hand():
    cluster = build(**PORTS).cluster()
    names = [[[cluster.ports[i].name for i in path.ports] for path in row] for row in cluster.paths]
    assert names == [
        [
            ["prefill-0.nvlink_out", "decode-0.nvlink_in"],
            ["prefill-0.nic_out", "x.up", "spine", "z.down", "decode-1.nic_in"],
        ],
        [
            ["prefill-1.nic_out", "spine", "decode-0.nic_in"],
            ["prefill-1.nic_out", "spine", "z.down", "decode-1.nic_in"],
        ],
    ]
    assert [[TIERS[path.tier] for path in row] for row in cluster.paths] == [
        ["nvlink", "spine"],
        ["spine"] * 2,
    ]
    nvlink = catalog.link("nvlink")
    assert cluster.paths[0][0].latency_s == nvlink.latency_s
    assert cluster.paths[0][1].latency_s == pytest.approx(3e-3)


def test_port_rates_by_hand():
    ports = {port.name: port for port in build(**PORTS).cluster().ports}
    assert ports["prefill-0.nic_out"].bytes_per_s == 5e9 and ports["prefill-0.nic_out"].line_bytes_per_s == 10e9
    assert ports["x.up"].bytes_per_s == 2e9 and "x.down" not in ports and "y.up" not in ports
    assert ports["spine"].bytes_per_s == 3.5e9
    h100, nvlink = catalog.gpu("h100"), catalog.link("nvlink")
    assert ports["prefill-0.nvlink_out"].line_bytes_per_s == 4 * h100.nvlink_bytes_per_s
    assert ports["decode-0.nvlink_in"].bytes_per_s == 2 * h100.nvlink_bytes_per_s * nvlink.efficiency
    assert "decode-1.nvlink_in" not in ports


def test_cost_per_byte_by_hand():
    """1 ns/byte of posting, doubled by TP 4 against 8 or 2; 1 ns to quantise, 0.5 ns to dequantise."""
    paths = build(**PORTS).cluster().paths
    assert paths[1][1].cost_s_per_byte == pytest.approx((2e-9, 3.5e-9, 3.5e-9, 3.5e-9))
    # the other instance stores FP8: BF16 is converted on arrival, FP8 before it is sent, INT4 at both ends
    assert paths[1][0].cost_s_per_byte == pytest.approx((2.5e-9, 3e-9, 3.5e-9, 3.5e-9))


def test_mixed_store_needs_no_dequantisation():
    changed = {**PORTS, "kv": {**PORTS["kv"], "mixed_store": True}}
    assert build(**changed).cluster().paths[1][0].cost_s_per_byte == pytest.approx((2e-9, 3e-9, 3e-9, 3e-9))


def test_min_cut_by_hand():
    """NVLink carries 2 × 450 GB/s to decode 0; the spine carries 7 GB/s to both."""
    scenario = build(**PORTS)
    h100 = catalog.gpu("h100")
    assert scenario.min_cut_bytes_per_s(line=True) == pytest.approx(2 * h100.nvlink_bytes_per_s + 7e9)
    narrow = load_scenario("toy", {"decode.0.nic_bytes_per_s": 5e6})
    assert narrow.min_cut_bytes_per_s() == 10e6
    one_sender = load_scenario("toy", {"prefill.0.active": 1})
    assert one_sender.min_cut_bytes_per_s() == 16e6


def test_min_cut_finds_the_rack_links():
    """Prefill instances (16 MB/s each) stand in one rack; its uplink limits what leaves, not what stays."""
    racks = {
        "racks": {"a": {"uplink_bytes_per_s": 5e6}, "b": {"downlink_bytes_per_s": 3e6}},
        "efficiency": 1,
        "overlap": "blocking",
    }
    away = load_scenario("toy", {"network": racks, "prefill.0.rack": "a", "decode.0.rack": "b"})
    assert away.min_cut_bytes_per_s() == 3e6
    split = load_scenario("toy", {"network": racks, "prefill.0.rack": "a", "decode.0.racks": ["a", "b"]})
    assert split.min_cut_bytes_per_s() == 16e6 + 3e6


def test_the_page_of_keys_is_up_to_date():
    from pdenv.scenario_docs import markdown

    page = Path(__file__).parents[1] / "docs" / "scenario.md"
    assert page.read_text(encoding="utf-8") == markdown(), (
        "write it again: python -m pdenv.scenario_docs docs/scenario.md"
    )


def test_every_key_is_described_with_its_unit():
    from pdenv.fields import unit, walk

    said = {
        "s": r"\bs\b",
        "1/s": r"(per |/)s\b",
        "bytes": "bytes",
        "bytes/s": "bytes/s",
        "bytes/token": "token.* in bytes",
        "tokens": "tokens?",
        "": ".",
    }
    for place, _, leaves in walk(Scenario):
        for name, field in leaves:
            assert re.search(said[unit(name)], field.description or ""), f"{place}.{name}"


def test_unreadable_files(tmp_path):
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"name: x\n\xff\xfe")
    with pytest.raises(InputError, match=r"b\.yaml:2: is not UTF-8"):
        load_scenario(binary)
    with pytest.raises(InputError, match="is a directory"):
        load_scenario(tmp_path)
    with pytest.raises(InputError, match="no such scenario file"):
        load_scenario(tmp_path / "none.yaml")
    (tmp_path / "e.yaml").write_text("# nothing\n")
    with pytest.raises(InputError, match="is empty"):
        load_scenario(tmp_path / "e.yaml")

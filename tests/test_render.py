"""Pictures and text of a running cluster: what they say is right, can be read, and looking changes nothing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from pdenv import load_scenario, workload
from pdenv.envs.render import picture, style
from pdenv.envs.render.canvas import HEIGHT, WIDTH
from pdenv.envs.render.layout import arrange
from pdenv.envs.render.picture import Picture, Window, paint
from pdenv.envs.render.scene import Scene, look
from pdenv.envs.render.text import bar, split_bar, to_text
from pdenv.scenario import Scenario
from pdenv.sim import decisions
from pdenv.sim.engine import Objective, Simulation
from pdenv.sim.records import ARRIVAL

LIMITS = Objective(ttft_limit_s=1.0, tpot_limit_s=0.05)


def start(scenario: Scenario, rule: str | None = "least-requests") -> Simulation:
    load = workload.build(scenario)
    return Simulation(scenario.cluster(), load.arrivals, load.blocks, rule=rule, objective=LIMITS)


# ---- a moment worked out by hand -------------------------------------------------------------------
#
# The blocking run of test_toy.py: round-robin over two pairs of the preset toy (16 kB of KV a token, links of
# 16 MB/s, an iteration of one sequence takes 0.011 s). At 1.6 s
# - requests 0, 1 and 3 have completed, with joint TPOT 0.11 + 0.10 + 0.011, 0.21 + 0.20 + 0.011 and 0.26 + 0 + 0;
# - request 2 (300 tokens) decodes on instance 0 since 1.52 s: 7 iterations are over, so it holds 308 tokens;
# - request 4 (500 tokens) is in staging on prefill instance 0; it has the link for itself and ends at 1.72 s.
# Prefill was busy for 0.92 and 0.32 s. Of the completed ones only request 3 meets 50 ms a token: the others waited
# for their transfer after the first token.
BLOCKING = [(0.00, 100, 3), (0.00, 200, 2), (0.05, 300, 21), (0.06, 100, 1), (0.07, 500, 4)]


def toy_run() -> Simulation:
    arrivals = np.zeros(len(BLOCKING), ARRIVAL)
    for row, (arrival_s, prompt, output) in zip(arrivals, BLOCKING, strict=True):
        row["arrival_s"], row["prompt_tokens"], row["output_tokens"] = arrival_s, prompt, output
        row["predicted_tokens"] = output
    return Simulation(load_scenario("toy").cluster(), arrivals, rule="round-robin", objective=LIMITS)


@pytest.fixture(scope="module")
def toy() -> Scene:
    sim = toy_run()
    sim.run(1.6)
    return look(sim, title="toy", decision="request 4 → prefill-0 → decode-0 as BF16", reward=-2.5, step=5)


def test_scene_of_a_moment_worked_out_by_hand(toy):
    source, idle = toy.prefill
    assert source.staging_used_bytes == 500 * 16_000 and source.step_requests == 0
    assert source.egress_bytes_per_s == pytest.approx(16e6) and source.egress_share == pytest.approx(1.0)
    assert idle.staging_used_bytes == 0 and idle.egress_bytes_per_s == 0.0
    sink = toy.decode[0]
    assert sink.sequences == 1 and sink.iteration_s == pytest.approx(0.011)
    assert sink.running_bytes == 308 * 16_000 and sink.reserved_bytes == 500 * 16_000
    (flow,) = toy.flows
    assert (flow.prefill, flow.decode, flow.precision, flow.tier, flow.requests) == (0, 0, "bf16", "nic", 1)
    assert flow.left_bytes == pytest.approx(0.12 * 16e6) and flow.port_share == pytest.approx(1.0)
    assert toy.stages == (0, 0, 0, 1, 1) and toy.gateway_requests == 0 and toy.head is None


def test_running_metrics_of_a_moment_worked_out_by_hand(toy):
    run = toy.running
    assert (run.arrived, run.ended, run.completed, run.preemptions) == (5, 3, 3, 0)
    parts = (run.prefill_s, run.transfer_s, run.decode_s)
    assert parts == pytest.approx(((0.11 + 0.21 + 0.26) / 3, 0.3 / 3, 0.022 / 3))
    assert run.joint_tpot_s == pytest.approx(sum(parts))
    assert run.slo_share == pytest.approx(1 / 3) and run.goodput_per_s == pytest.approx(1 / 1.6)
    assert run.prefill_busy == pytest.approx((0.92 + 0.32) / 3.2)
    assert run.decode_memory == pytest.approx(808 * 16_000 / 64e6)
    assert run.busiest_share == pytest.approx(1.0)
    np.testing.assert_allclose(toy.recent, [(0.11, 0.10, 0.011), (0.26, 0.0, 0.0), (0.21, 0.20, 0.011)])


def test_text_of_a_moment_worked_out_by_hand(toy):
    lines = to_text(toy).splitlines()

    def line(*words: str) -> str:
        return next(it for it in lines if all(word in it for word in words))

    assert "t = 1.60 s" in lines[0] and "step 5" in lines[0] and "reward −2.5" in lines[0]
    assert line("decision").endswith("request 4 → prefill-0 → decode-0 as BF16")
    assert "0 waiting" in line("gateway")
    assert "████···· 8.00 / 16.0 MB" in line("prefill-0", "active")
    assert "idle" in line("prefill-1", "active")
    assert "█▒▒····· 12.9 / 32.0 MB" in line("decode-0", "active") and "11.0 ms" in line("decode-0", "active")
    assert "1.92 MB  nic" in line("prefill-0 → decode-0", "1 × bf16  16.0 MB/s")
    assert line("joint TPOT").endswith("0.301 s = prefill 0.193 s + transfer 0.100 s + decode 7.33 ms")
    assert "33 %   goodput 0.625 / s" in line("SLO met")
    assert "prefill busy 39 %" in line("in use") and "decode memory 20 %" in line("in use")
    assert line("fullest link", "100 %").endswith("prefill-0.nic_out 100 %")
    assert "5 arrived   3 ended" in line("arrived")


def test_only_measured_requests_count(toy):
    sim = toy_run()
    sim.run(1.6)
    run = look(sim, measured=slice(1, 4)).running
    assert (run.arrived, run.ended) == (3, 2)
    assert run.prefill_s == pytest.approx((0.21 + 0.26) / 2)
    none_yet = look(sim, measured=slice(100, 200)).running
    assert none_yet.arrived == 0 and none_yet.joint_tpot_s is None and none_yet.slo_share is None


def test_progress_of_a_running_step():
    sim = toy_run()
    sim.run(0.515)  # half of the step 0.11 … 0.92 of prefill instance 0
    it = look(sim).prefill[0]
    assert it.step_requests == 2 and it.tokens_left == 800
    assert it.step_share == pytest.approx(0.5) and it.step_left_s == pytest.approx(0.405)


def test_the_request_to_be_decided_is_at_the_head():
    scenario = load_scenario("operating-point")
    sim = start(scenario, rule=None)
    assert sim.step()
    head = look(sim).head
    tiers = [tier.precisions for tier in scenario.quality.tiers.values()]
    assert head is not None and head.number == 0 and not head.held
    assert head.prompt_tokens == sim.arrivals["prompt_tokens"][0]
    assert head.precisions == tiers[sim.arrivals["tier"][0]]
    decisions.hold(sim)
    assert sim.step()
    scene = look(sim)
    assert scene.head is not None and scene.head.held and scene.head.waited_s > 0.0
    assert scene.gateway_prompt_tokens == tuple(sim.arrivals["prompt_tokens"][: scene.gateway_requests])


# ---- looking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin", [False, True])
def test_looking_changes_nothing(twin):
    scenario = load_scenario("hetero-links")
    scenario = scenario.colocated_twin() if twin else scenario
    rule = "colocated" if twin else "three-part"
    seen, unseen = start(scenario, rule), start(scenario, rule)
    for t in np.linspace(5.0, 60.0, 12):
        seen.run(t)
        before = seen.block.bytes.copy()
        paint(look(seen))
        np.testing.assert_array_equal(seen.block.bytes, before)
    unseen.run(60.0)
    assert seen.records.tobytes() == unseen.records.tobytes()


def test_equal_scenes_have_equal_pixels_and_others_do_not(toy):
    first, again = Picture().draw(toy), pickle.loads(pickle.dumps(Picture())).draw(toy)
    assert first.shape == (HEIGHT, WIDTH, 3) and first.dtype == np.uint8
    np.testing.assert_array_equal(first, again)
    sim = toy_run()
    sim.run(1.65)
    assert np.any(Picture().draw(look(sim)) != first)
    assert Picture(scale=2).draw(toy).shape == (2 * HEIGHT, 2 * WIDTH, 3)


def test_pixels_do_not_depend_on_the_users_settings(toy):
    expected = Picture().draw(toy)
    with matplotlib.rc_context({"font.size": 30, "path.sketch": (5, 50, 5), "lines.antialiased": False}):
        np.testing.assert_array_equal(Picture().draw(toy), expected)


def test_boxes_stay_where_they_are():
    sim = start(load_scenario("operating-point"))
    first = arrange(look(sim))
    sim.run(30.0)
    assert arrange(look(sim)) == first


# ---- every kind of cluster -------------------------------------------------------------------------


def spread(n: int, racks: int) -> Scenario:
    """`n` prefill and `n` decode instances of the operating point, over so many racks."""
    names = [f"r{k}" for k in range(racks)]
    where = [names[i * racks // n] for i in range(n)]
    link = {"uplink_bytes_per_s": 60e9, "downlink_bytes_per_s": 60e9}
    changes = {
        **{
            f"{pool}.0.{key}": value
            for pool in ("prefill", "decode")
            for key, value in (("count", n), ("racks", where))
        },
        "network.racks": dict.fromkeys(names, link),
        "scaling.gpu_budget": 16 * n,
        "workload.rate_per_s": 3.5 * n,
    }
    return load_scenario("operating-point", changes)


def beside_colocated() -> Scenario:
    group = {"count": 2, "gpu": "h100", "tensor_parallel": 8, "rack": "b"}
    return load_scenario("operating-point", {"colocated": [group], "scaling.gpu_budget": 72})


def many_in_one_rack(n: int) -> Scenario:
    return load_scenario("toy", {"prefill.0.count": n, "decode.0.count": n, "workload.rate_per_s": 5.0 * n})


CLUSTERS: dict[str, tuple[Callable[[], Scenario], str, float]] = {
    "toy": (lambda: load_scenario("toy"), "random", 3.0),
    "hetero-links": (lambda: load_scenario("hetero-links"), "round-robin", 20.0),
    "operating-point": (lambda: load_scenario("operating-point"), "three-part", 20.0),
    "overload": (lambda: load_scenario("operating-point", {"workload.rate_per_s": 60.0}), "random", 30.0),
    "co-located only": (lambda: load_scenario("operating-point").colocated_twin(), "colocated", 20.0),
    "co-located beside": (beside_colocated, "random", 10.0),
    "16 + 16": (lambda: spread(16, 4), "random", 6.0),
    "64 + 64": (lambda: spread(64, 8), "least-work", 6.0),
    "64 + 64 in one rack": (lambda: many_in_one_rack(64), "random", 1.0),
    "64 co-located": (lambda: many_in_one_rack(32).colocated_twin(), "colocated", 1.0),
    "12 racks": (lambda: spread(24, 12), "random", 3.0),
}


@cache
def busy_scene(cluster: str) -> Scene:
    make, rule, until_s = CLUSTERS[cluster]
    sim = start(make(), rule)
    sim.run(until_s)
    return look(sim, title=cluster, decision="request 1,234 → prefill-63 → decode-63 as NVFP4", reward=-12345.6)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_word_can_be_read(cluster):
    scene = busy_scene(cluster)
    assert sum(scene.stages) > 0  # something is going on
    canvas = paint(scene)
    words = canvas.texts
    for k, (word, box) in enumerate(words):
        assert box.x >= 0 and box.y >= 0 and box.right <= WIDTH and box.bottom <= HEIGHT, word
        assert not word.endswith("…"), f"{word} was cut"
        for other, beside in words[k + 1 :]:
            apart = box.right <= beside.x or beside.right <= box.x or box.bottom <= beside.y or beside.bottom <= box.y
            assert apart, f"'{word}' lies over '{other}'"
    assert canvas.pixels().shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_boxes_lie_in_their_racks_and_apart(cluster):
    scene = busy_scene(cluster)
    layout = arrange(scene)
    pools = ((scene.prefill, layout.prefill), (scene.decode, layout.decode), (scene.colocated, layout.colocated))
    boxes = []
    for pool, places in pools:
        for it, box in zip(pool, places, strict=True):
            rack = layout.racks[it.rack if len(layout.racks) > 1 else 0].box
            assert rack.x <= box.x and box.right <= rack.right and rack.y <= box.y and box.bottom <= rack.bottom
            boxes.append(box)
    for k, a in enumerate(boxes):
        for b in boxes[k + 1 :]:
            assert a.right <= b.x or b.right <= a.x or a.bottom <= b.y or b.bottom <= a.y


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_text_fits_a_terminal(cluster):
    lines = to_text(busy_scene(cluster)).splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) <= 80
    assert not any(line.endswith("…") for line in lines)
    assert not any("\x1b" in line or "nan" in line for line in lines)


def test_a_large_pool_is_summarised():
    scene = busy_scene("64 + 64")
    text = to_text(scene)
    assert "prefill (64: 64 active; the 12 with the most to do)" in text
    busiest = max(scene.prefill, key=lambda it: it.tokens_left)
    assert any(line.startswith(f"{busiest.name} ") for line in text.splitlines())


def test_states_are_told(toy):
    prefill = (replace(toy.prefill[0], state="draining", stalled=True), replace(toy.prefill[1], state="off"))
    decode = (replace(toy.decode[0], preempted_requests=2), replace(toy.decode[1], state="warming"))
    scene = replace(toy, prefill=prefill, decode=decode)
    words = [word for word, _ in paint(scene).texts]
    assert {"draining", "stalled", "off", "2 preempted", "warming"} <= set(words)
    text = to_text(scene)
    assert all(word in text for word in ("stalled", "off", "2 preempted", "warming"))


# ---- numbers and bars ------------------------------------------------------------------------------


def test_bars_are_exact_to_an_eighth():
    assert bar(0.5, 4) == "██··" and bar(0.0, 4) == "····" and bar(1.0, 4) == "████"
    assert bar(3 / 32, 4) == "▍···" and bar(1e-9, 4) == "▏···" and bar(7.0, 4) == "████"
    assert split_bar(0.25, 0.5, 8) == "██▒▒▒▒··" and split_bar(1.0, 0.0, 4) == "████"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (style.percent_text(0.9996), "> 99.9 %"),
        (style.percent_text(1.0), "100 %"),
        (style.percent_text(0.004), "0.4 %"),
        (style.seconds_text(0.0423), "42.3 ms"),
        (style.seconds_text(None), "–"),
        (style.bytes_text(34.2e9), "34.2 GB"),
        (style.of_text(39e9, 1.21e12), "39.0 GB / 1.21 TB"),
        (style.of_rate_text(0.44e9, 22.5e9), "0.4 / 22.5 GB/s"),
        (style.number_text(-1234.56), "−1,234.6"),
        (style.tokens_text(33_312), "33 k"),
    ],
)
def test_numbers(text, expected):
    assert text == expected


# ---- the window ------------------------------------------------------------------------------------


def test_without_a_display_there_is_no_window(toy, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(picture.sys, "platform", "linux")
    before = dict(matplotlib.rcParams.copy())
    window = Window()
    window.show(toy)
    window.show(toy)
    assert not window.visible
    window.close()
    assert dict(matplotlib.rcParams.copy()) == before
    assert Picture().draw(toy).any()


class _Manager:
    """A figure manager without a toolkit."""

    def __init__(self, figure) -> None:
        self.canvas = FigureCanvasAgg(figure)
        self.shown = self.destroyed = False

    def set_window_title(self, title: str) -> None:
        self.title = title

    def show(self) -> None:
        self.shown = True

    def destroy(self) -> None:
        self.destroyed = True


@pytest.fixture
def managers(monkeypatch) -> list[_Manager]:
    made: list[_Manager] = []

    def make(figure) -> _Manager:
        made.append(_Manager(figure))
        return made[-1]

    monkeypatch.setattr(picture, "_window_of", make)
    return made


def test_window_shows_the_picture(toy, managers):
    window = Window()
    window.show(toy)
    later = replace(toy, title="later")
    window.show(later)
    (manager,) = managers
    shown = np.asarray(manager.canvas.buffer_rgba())[..., :3].astype(float)
    assert manager.shown and window.visible
    assert np.abs(shown - Picture().draw(later)).mean() < 0.5
    assert np.abs(shown - Picture().draw(toy)).mean() > np.abs(shown - Picture().draw(later)).mean()
    window.close()
    assert manager.destroyed and not window.visible


def test_a_window_that_the_user_closed_stays_closed(toy, managers):
    window = Window()
    window.show(toy)
    managers[0].canvas.callbacks.process("close_event", None)
    window.show(toy)
    assert not window.visible and len(managers) == 1


def test_a_copied_window_is_not_open_yet(toy, managers):
    window = Window()
    window.show(toy)
    for other in (copy.deepcopy(window), pickle.loads(pickle.dumps(window))):
        assert not other.visible
        other.show(toy)
        assert other.visible
    assert len(managers) == 3

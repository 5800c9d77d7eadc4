"""Comparisons on a Ray cluster of two nodes: the numbers of one process. `make test-ray` runs this."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

import pdenv
from pdenv.bench import runner
from pdenv.errors import InputError

POLICIES = "three-part,round-robin,random"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of one CPU each, which `ray.init(address="auto")` finds."""
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", nodes.address)
            yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture(scope="module")
def toy() -> pdenv.Scenario:
    return pdenv.load_scenario("toy", overrides={"window.requests": 60})


def test_two_nodes_give_the_numbers_of_one_process(cluster, toy):
    ray.init(address=cluster.address)
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    here = pdenv.compare(toy, POLICIES, windows=4)
    assert pdenv.compare(toy, POLICIES, windows=4, backend="ray") == here
    assert ray.is_initialized()  # a connection of the caller's is left alone
    ray.shutdown()


def test_the_cluster_that_runs_is_joined_and_left(cluster, toy):
    here = pdenv.compare(toy, POLICIES, windows=2)
    assert pdenv.compare(toy, POLICIES, windows=2, backend="ray") == here
    assert not ray.is_initialized()


def test_both_nodes_work(cluster, toy):
    ray.init(address=cluster.address)
    try:

        @ray.remote(num_cpus=1)
        def where(job):
            import time

            runner.run_job(job)
            time.sleep(1.0)
            return ray.get_runtime_context().get_node_id()

        jobs = [runner.Job(runner.Contender("greedy", "heuristic"), runner.Given(toy, w, 0, {})) for w in range(6)]
        assert len(set(ray.get([where.remote(job) for job in jobs]))) == 2
    finally:
        ray.shutdown()


def test_bad_input_and_another_version_are_told_as_here(cluster, toy, tmp_path, monkeypatch):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "0.0,10,10\n" * 4)
    with pytest.raises(InputError, match=r"trace\.csv"):
        pdenv.compare(toy, POLICIES, windows=2, backend="ray", trace=str(path))
    monkeypatch.setattr(runner, "engine_digest", lambda: "of another version")
    with pytest.raises(InputError, match="has another version of pdenv"):
        pdenv.compare(toy, POLICIES, windows=2, backend="ray")

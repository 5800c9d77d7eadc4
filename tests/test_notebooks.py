"""The notebooks run from top to bottom and show what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def outputs(notebook) -> str:
    """All text that the cells printed."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return "\n".join(out.text for cell in cells for out in cell.outputs if out.output_type == "stream")


def results(notebook) -> list[str]:
    """What the cells showed as their value, as text."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [out.data["text/plain"] for cell in cells for out in cell.outputs if out.output_type == "execute_result"]


def pictures(notebook) -> int:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return sum("image/png" in out.get("data", {}) for cell in cells for out in cell.outputs)


@pytest.mark.slow
def test_quickstart_runs_and_the_agent_learns():
    nbformat = pytest.importorskip("nbformat", reason="running notebooks needs the extra 'test'")
    nbclient = pytest.importorskip("nbclient", reason="running notebooks needs the extra 'test'")
    pytest.importorskip("sb3_contrib", reason="training needs the extra 'train'")
    notebook = nbformat.read(FOLDER / "01_quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(FOLDER)}}).execute()
    before, after, heuristic = map(
        float, re.findall(r"before: ([\d.]+), after: ([\d.]+), three-part: ([\d.]+)", outputs(notebook))[0]
    )
    assert after < 0.6 * before
    assert heuristic < before
    assert pictures(notebook) == 3


@pytest.mark.slow
def test_comparing_policies_runs_and_ranks_tunes_and_reports():
    nbformat = pytest.importorskip("nbformat", reason="running notebooks needs the extra 'test'")
    nbclient = pytest.importorskip("nbclient", reason="running notebooks needs the extra 'test'")
    notebook = nbformat.read(FOLDER / "02_compare_policies.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    assert pictures(notebook) == 4
    first, second = [shown for shown in results(notebook) if "SLO met" in shown]
    order = re.findall(r"^([a-z-]+) +([\d.]+) ", first, re.MULTILINE)[:6]  # wide tables go on below
    assert [float(cost) for _, cost in order] == sorted(float(cost) for _, cost in order)
    assert order[-1][0] in ("round-robin", "least-work")  # which ignore sizes, or links
    assert "soonest:Soonest" in second
    default, tuned = map(float, re.findall(r"training windows: ([\d.]+) .*?, ([\d.]+) with", outputs(notebook))[0])
    assert tuned <= default
    assert "index.html" in results(notebook)[-1]

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
    pictures = [
        o for c in notebook.cells if c.cell_type == "code" for o in c.outputs if "image/png" in o.get("data", {})
    ]
    assert len(pictures) == 3

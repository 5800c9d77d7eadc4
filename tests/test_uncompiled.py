"""The kernels run as plain Python too, with every index checked, and give what the compiled engine gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from driving import run_engine
from strategies import draw_case

TESTS = Path(__file__).parent

#: Between them: layer-wise and blocking, co-located, scaling, preemption by swap and recompute, stale metrics.
SEEDS = (0, 4, 8, 19, 21, 22, 31, 32, 35, 44, 47, 50, 53, 58)

PROGRAM = """
import sys
import numpy as np
from driving import run_engine
from strategies import draw_case
from pdenv.sim.layout import JIT

assert not JIT
folder, *seeds = sys.argv[1:]
for seed in seeds:
    sim = run_engine(draw_case(int(seed)))
    np.save(f"{folder}/{seed}.npy", sim.records)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Records of the uncompiled engine, one file a seed."""
    folder = tmp_path_factory.mktemp("uncompiled")
    environment = {
        **os.environ,
        "NUMBA_DISABLE_JIT": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
    }
    command = [sys.executable, "-c", PROGRAM, str(folder), *map(str, SEEDS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.parametrize("seed", SEEDS)
def test_uncompiled_equals_compiled(folder, seed):
    plain = np.load(folder / f"{seed}.npy")
    compiled = run_engine(draw_case(seed)).records
    assert len(plain) == len(compiled) > 0
    for name in compiled.dtype.names:
        if compiled.dtype[name].kind == "f":
            np.testing.assert_allclose(plain[name], compiled[name], rtol=1e-12, atol=1e-12, err_msg=name)
        else:
            np.testing.assert_array_equal(plain[name], compiled[name], err_msg=name)

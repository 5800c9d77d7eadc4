"""Machine code on disk is never older than the sources it was made from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pdenv

#: Compiles one small function that calls another file's, and says what it returns and whether it was on disk.
PROBE = """
import json, numba
before = numba.config.CACHE_DIR
from small import make_arrivals, make_cluster, make_profile
from pdenv.sim import compiled, gateway
from pdenv.sim.engine import Simulation

sim = Simulation(make_cluster(make_profile(prefill_b_s=0.25)), make_arrivals([0.0], 4, 1), rule="round-robin")
assert numba.config.CACHE_DIR == before
predicted = compiled._cached(gateway.predicted_prefill_s, compiled.cache_folder())
seconds = float(predicted(sim.block.handle(), 0, 4))
hits = sum(predicted.stats.cache_hits.values())
print(json.dumps({"seconds": seconds, "hits": hits, "setting_kept": numba.config.CACHE_DIR == before}))
"""


class Copy:
    """A copy of the package with a machine-code cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        package = Path(pdenv.__file__).parent
        shutil.copytree(package, folder / "pdenv", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(Path(__file__).with_name("small.py"), folder)

    def run(self) -> dict:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "PYTHON"))}
        environment["PYTHONPATH"] = str(self.folder)
        environment["PDENV_CACHE_DIR"] = str(self.folder / "cache")
        done = subprocess.run(
            [sys.executable, "-c", PROBE], env=environment, cwd=self.folder, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def edit(self, file: str, old: str, new: str) -> None:
        """Change a source, leaving the times of the file as they were."""
        path = self.folder / "pdenv" / "sim" / file
        stat = path.stat()
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), encoding="utf-8")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[dict]:
    """First run, second run, a run after a change in a callee, and one after the change was taken back."""
    copy = Copy(tmp_path_factory.mktemp("copy"))
    old, new = "t = law.prefill_a + law.prefill_b * tokens", "t = law.prefill_a + law.prefill_b * tokens * 3"
    results = [copy.run(), copy.run()]
    copy.edit("steps.py", old, new)
    results.append(copy.run())
    copy.edit("steps.py", new, old)
    results.append(copy.run())
    return results


def test_the_second_run_takes_machine_code_from_disk(runs):
    assert runs[0]["hits"] == 0
    assert runs[1]["hits"] == 1
    assert runs[0]["seconds"] == runs[1]["seconds"] == pytest.approx(1.0, abs=1e-5)


def test_a_changed_callee_is_compiled_anew_and_the_old_code_still_serves_the_old_source(runs):
    """The changed function is in another file than the entry point, where numba's own cache does not look."""
    assert runs[2]["seconds"] == pytest.approx(3.0, abs=1e-5)
    assert runs[2]["hits"] == 0
    assert runs[3]["seconds"] == runs[0]["seconds"]
    assert runs[3]["hits"] == 1


def test_numbas_own_setting_is_left_as_it_was(runs):
    assert all(run["setting_kept"] for run in runs)


def test_every_source_file_counts(tmp_path):
    """A change, a new file, a renamed one: each gives another key."""
    from pdenv.sim.compiled import SOURCES, source_key

    folder = tmp_path / "sim"
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert source_key(folder) == source_key(SOURCES)
    keys = {source_key(folder)}
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        file.write_text(text + "\n", encoding="utf-8")
        keys.add(source_key(folder))
        file.write_text(text, encoding="utf-8")
    (folder / "new.py").write_text("", encoding="utf-8")
    keys.add(source_key(folder))
    (folder / "new.py").rename(folder / "newer.py")
    keys.add(source_key(folder))
    assert len(keys) == len(list(SOURCES.rglob("*.py"))) + 3


@pytest.mark.parametrize("damage", [b"", b"half of it"])
def test_a_damaged_cache_is_compiled_again(tmp_path: Path, capsys, damage: bytes) -> None:
    from small import make_arrivals, make_cluster, make_profile

    from pdenv.sim import compiled, events
    from pdenv.sim.engine import Simulation

    sim = Simulation(make_cluster(make_profile()), make_arrivals([0.5], 4, 1), rule="round-robin")
    expected = compiled._EntryPoint(events.next_slot, tmp_path)(sim.block.handle())
    files = list(tmp_path.rglob("*.nbi")) + list(tmp_path.rglob("*.nbc"))
    assert files
    for file in files:
        file.write_bytes(damage)
    assert compiled._EntryPoint(events.next_slot, tmp_path)(sim.block.handle()) == expected
    assert "is damaged" in capsys.readouterr().err
    assert compiled._EntryPoint(events.next_slot, tmp_path)(sim.block.handle()) == expected
    assert capsys.readouterr().err == ""

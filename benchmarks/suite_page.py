"""Writes the tables of the suite's page and of two READMEs from committed results.

    python benchmarks/suite_page.py                                             # write the tables again
    python benchmarks/suite_page.py runs/suite/results.json suite-v1            # keep a comparison, then write
    python benchmarks/suite_page.py runs/agent/results.json agent-hetero-links

Nothing here measures. Results are in `docs/results/`: `gates-v1.json` (`python -m pdenv.bench.gates`),
`headroom-v1.json` (`python benchmarks/headroom.py`) and comparisons without their runs. A table whose results
are missing says so. Text outside the markers stays.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from pdenv import atomic
from pdenv.bench.results import Comparison, load
from pdenv.metrics import to_json

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "docs" / "suite.md", ROOT / "README.md", ROOT / "agents" / "README.md")
VERSION = "v1"
RESULTS = ROOT / "docs" / "results"
MISSING = "_Not measured yet._"
REFERENCES = ("lookahead", "clairvoyant")
HONEST = "three-part"
RESOURCES = {"decode": "decode half as fast", "links": "links half as wide"}

Raw = dict[str, Any]


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    rule = ("---", *["---:"] * (len(head) - 1))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def number(value: float | None) -> str:
    """Three significant digits, without an exponent."""
    if value is None:
        return "–"
    digits = 2 - math.floor(math.log10(abs(value))) if value else 2
    return f"{value:,.{max(0, digits)}f}"


def percent(share: float | None, sign: bool = False) -> str:
    return "–" if share is None else f"{100 * share:{'+' if sign else ''}.0f} %"


def interval(value: Raw) -> str:
    """A mean with its 95 % interval."""
    if value["low"] is None:
        return number(value["mean"])
    return f"{number(value['mean'])} [{number(value['low'])}, {number(value['high'])}]"


# ---- gates ----------------------------------------------------------------------------------------------


def operating_line(gates: Raw, windows: int) -> str:
    """How busy each resource is under the best heuristic of the gates, over so many windows."""
    line = gates["operating_line"]
    links = ", ".join(f"{name.replace('_', ' ')} {percent(share)}" for name, share in line["links"].items())
    head = ("under", "prefill busy", "decode memory", "BF16 KV / narrowest cut", "mean E2E, s", "window, s")
    row = (
        f"`{gates['best']}`",
        percent(line["prefill_busy"]),
        percent(line["decode_memory"]),
        percent(line["bf16_network"]),
        number(line["e2e_s"]),
        number(line["window_s"]),
    )
    used = f" Links used, of what all links of the kind achieve together: {links}." if links else ""
    return f"{table(head, [row])}\n\nMeans over {windows} windows.{used}"


def sensitivity_table(found: Raw) -> str:
    head = ("scenario", "best heuristic", "cost", *RESOURCES.values(), "")
    rows = []
    for name, gates in found["scenarios"].items():
        moved = [f"{percent(gates['sensitivity'][key]['change'], sign=True)}" for key in RESOURCES]
        verdict = "control" if gates["control"] else "passed" if gates["passed"] else "**failed**"
        rows.append((f"`{name}`", f"`{gates['best']}`", number(gates["cost"]), *moved, verdict))
    return table(head, rows) + source(found)


def gaming_table(found: Raw) -> str:
    """The smallest ratio over the cost modes."""
    tricks = list(dict.fromkeys(trick for gates in found["scenarios"].values() for trick in gates["gaming"]))
    rows = []
    for name, gates in found["scenarios"].items():
        ratios = (min(gates["gaming"][t].values()) if t in gates["gaming"] else None for t in tricks)
        rows.append((f"`{name}`", *("–" if ratio is None else f"× {number(ratio)}" for ratio in ratios)))
    return table(("scenario", *(trick.replace("-", " ") for trick in tricks)), rows) + source(found)


def source(found: Raw) -> str:
    return f"\n\n`{found['command']}`, {counted(found)}, pdenv {found['pdenv']}, {found['date']}."


def counted(found: Raw) -> str:
    return f"{found['windows']} windows" if found["windows"] > 1 else "1 window"


# ---- comparisons ----------------------------------------------------------------------------------------


def leaderboard(found: Raw, name: str) -> str:
    head = ("policy", "cost", "vs best", "TTFT P50, s", "TTFT P99, s", "TPOT, s", "SLO met", "KV compressed", "")
    rows = []
    for row in found["leaderboards"][name]:
        relative = row["relative"]
        ratio = "–" if relative is None else f"{relative['mid']:.3f} [{relative['low']:.3f}, {relative['high']:.3f}]"
        rows.append(
            (
                f"`{row['policy']}`",
                interval(row["cost"]),
                ratio,
                *(number(row[key]["mean"]) for key in ("ttft_p50_s", "ttft_p99_s", "tpot_s")),
                percent(row["slo_attainment"]["mean"]),
                percent(row["compressed_share"]["mean"]),
                "tied" if row["tied"] else f"{row['failed']} failed" if row["failed"] else "",
            )
        )
    return table(head, rows)


def overall_table(found: Raw) -> str:
    rows = [
        (
            f"`{row['policy']}`",
            number(row["iqm"]),
            f"[{number(row['low'])}, {number(row['high'])}]",
            f"{number(row['worst'])} ({row['worst_in']})",
            str(row["scenarios"]),
        )
        for row in found["overall"]
    ]
    return table(("policy", f"cost / {HONEST} (interquartile mean)", "95 %", "worst", "scenarios"), rows) + compared(
        found
    )


def headroom_table(found: Raw) -> str:
    """`three-part`, the best heuristic, the references, and what each of these saves on the best heuristic."""
    rows = []
    for name, board in found["leaderboards"].items():
        by_name = {row["policy"].partition("(")[0]: row for row in board if row["cost"]["mean"] is not None}
        heuristics = [row for row in by_name.values() if row["kind"] == "heuristic"]
        if not heuristics:
            continue
        best = min(heuristics, key=lambda row: row["cost"]["mean"])
        rows.append(
            (
                f"`{name}`",
                interval(by_name[HONEST]["cost"]) if HONEST in by_name else "–",
                f"`{best['policy']}` {interval(best['cost'])}",
                *(reference(by_name.get(key)) for key in REFERENCES),
                str(len(found["costs"][name][best["policy"]])),
            )
        )
    head = ("scenario", HONEST, "best heuristic", *(f"{name}: cost, what it saves" for name in REFERENCES), "windows")
    return table(head, rows) + f"\n\n`{found['command']}`, pdenv {found['versions']['pdenv']}, {found['started'][:10]}."


def reference(row: Raw | None) -> str:
    """A reference's cost, and what it saves on the best heuristic."""
    return "–" if row is None else f"{interval(row['cost'])}, **{saved(row['relative'])}**"


def decision_line(found: Raw) -> str:
    return f"A decision of lookahead on 4 + 4 instances takes {found['decision_ms']:.1f} ms of processor time."


def saved(relative: Raw | None) -> str:
    """What a relative cost saves, with its interval, best case last."""
    if relative is None:
        return "–"
    if relative["low"] is None:
        return percent(1.0 - relative["mid"])
    ends = (f"{100 * (1.0 - relative[key]):.0f}" for key in ("high", "low"))
    return f"{percent(1.0 - relative['mid'])} [{', '.join(ends)}]"


def compared(found: Raw) -> str:
    version = found["versions"].get("pdenv", "")
    return f"\n\n`{found['command']}`, {counted(found)}, pdenv {version}, {found['started'][:10]}."


# ---- the page -------------------------------------------------------------------------------------------


def read(name: str) -> Raw | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def blocks(page: str) -> dict[str, str]:
    """What stands between the markers of a page."""
    gates, suite, headroom = (read(f"{kind}-{VERSION}") for kind in ("gates", "suite", "headroom"))
    made = {
        "sensitivity": sensitivity_table(gates) if gates else MISSING,
        "gaming": gaming_table(gates) if gates else MISSING,
        "overall": overall_table(suite) if suite else MISSING,
        "headroom": headroom_table(headroom) if headroom else MISSING,
        "decision": decision_line(headroom) if headroom else MISSING,
    }
    for kind, name in re.findall(r"<!-- (line|leaderboard|agent) ([\w-]+) -->", page):
        found = {"line": gates, "leaderboard": suite}.get(kind) or read(f"agent-{name}")
        made[f"{kind} {name}"] = MISSING
        if kind == "line" and found and name in found["scenarios"]:
            made[f"line {name}"] = operating_line(found["scenarios"][name], found["windows"])
        elif found and name in found.get("leaderboards", ()):
            made[f"{kind} {name}"] = leaderboard(found, name) + (compared(found) if kind == "agent" else "")
    return made


def filled(page: str) -> str:
    """The page with what is made between its markers, `<!-- NAME -->` and `<!-- end -->`."""
    made = blocks(page)

    def replace(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{made[match[1]]}\n<!-- end -->"

    return re.sub(r"<!-- ((?!end )[\w -]+) -->\n.*?<!-- end -->", replace, page, flags=re.DOTALL)


def thin(comparison: Comparison) -> Raw:
    """What is committed of a comparison: everything but its runs, of which the cost is left, window by window."""
    found = comparison.to_dict()
    costs: dict[str, dict[str, list[float | None]]] = {}
    for run in comparison.runs:
        costs.setdefault(run.scenario, {}).setdefault(run.policy, []).append(run.metrics["cost"])
    entries = [{**entry, "source": ""} for entry in found["entries"]]  # where it lay on somebody's disk
    return {
        **found,
        "entries": entries,
        "runs": None,
        "costs": costs,
        "seconds": round(sum(run.seconds for run in comparison.runs), 1),
    }


def keep(results: str, name: str) -> None:
    """Keep a comparison among the committed results."""
    atomic.write_text(RESULTS / f"{name}.json", to_json(thin(load(results))))


def main(*arguments: str) -> None:
    if arguments:
        keep(*arguments)
    for page in PAGES:
        atomic.write_text(page, filled(page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(*sys.argv[1:])

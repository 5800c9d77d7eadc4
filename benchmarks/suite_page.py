"""Writes the tables of `docs/suite.md` from committed results: `python benchmarks/suite_page.py [VERSION]`.

Nothing here measures. The results are `docs/results/gates-v1.json` (`python -m pdenv.bench.gates`),
`suite-v1.json` and `headroom-v1.json` (comparisons as `pdenv compare --json` writes them). A table whose results are
missing says so. Text outside the markers stays.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from pdenv import atomic

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "suite.md"
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


def operating_line(gates: Raw) -> str:
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
    used = f"\n\nLinks used, of what they achieve: {links}." if links else ""
    return table(head, [row]) + used


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
    windows = f"{found['windows']} windows" if found["windows"] > 1 else "1 window"
    return f"\n\n`{found['command']}`, {windows}, pdenv {found['pdenv']}, {found['date']}."


# ---- comparisons ----------------------------------------------------------------------------------------


def leaderboard(found: Raw, name: str) -> str:
    head = ("policy", "cost", "of the best", "TTFT P50, s", "TTFT P99, s", "TPOT, s", "SLO met", "")
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
            str(row["scenarios"]),
        )
        for row in found["overall"]
    ]
    return table(("policy", f"cost / {HONEST} (interquartile mean)", "95 %", "scenarios"), rows) + compared(found)


def headroom_table(found: Raw) -> str:
    """`three-part`, the best heuristic, the references, and what the better of these saves on the best heuristic."""
    rows = []
    for name, board in found["leaderboards"].items():
        by_name = {row["policy"]: row for row in board if row["cost"]["mean"] is not None}
        heuristics = [row for row in by_name.values() if row["kind"] == "heuristic"]
        references = [by_name[key] for key in REFERENCES if key in by_name]
        if not heuristics:
            continue
        best = min(heuristics, key=lambda row: row["cost"]["mean"])
        saved = min((r["relative"]["mid"] for r in references if r["relative"]), default=None)
        rows.append(
            (
                f"`{name}`",
                interval(by_name[HONEST]["cost"]) if HONEST in by_name else "–",
                f"`{best['policy']}` {interval(best['cost'])}",
                *(interval(by_name[key]["cost"]) if key in by_name else "–" for key in REFERENCES),
                percent(None if saved is None else 1.0 - saved),
            )
        )
    return table(("scenario", HONEST, "best heuristic", *REFERENCES, "headroom"), rows) + compared(found)


def compared(found: Raw) -> str:
    version = found["versions"].get("pdenv", "")
    return f"\n\n`{found['command']}`, {found['windows']} windows, pdenv {version}, {found['started'][:10]}."


# ---- the page -------------------------------------------------------------------------------------------


def read(name: str) -> Raw | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def blocks(version: str) -> dict[str, str]:
    """What stands between the markers of each name."""
    gates, suite, headroom = (read(f"{kind}-{version}") for kind in ("gates", "suite", "headroom"))
    made = {
        "sensitivity": sensitivity_table(gates) if gates else MISSING,
        "gaming": gaming_table(gates) if gates else MISSING,
        "overall": overall_table(suite) if suite else MISSING,
        "headroom": headroom_table(headroom) if headroom else MISSING,
    }
    for name in re.findall(r"<!-- (?:line|leaderboard) ([\w-]+) -->", PAGE.read_text(encoding="utf-8")):
        known = gates is not None and name in gates["scenarios"]
        made[f"line {name}"] = operating_line(gates["scenarios"][name]) if gates and known else MISSING
        ranked = suite is not None and name in suite["leaderboards"]
        made[f"leaderboard {name}"] = leaderboard(suite, name) if suite and ranked else MISSING
    return made


def filled(page: str, made: dict[str, str]) -> str:
    """The page with what is made between its markers, `<!-- NAME -->` and `<!-- end -->`."""

    def replace(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{made[match[1]]}\n<!-- end -->"

    return re.sub(r"<!-- ((?!end )[\w -]+) -->\n.*?<!-- end -->", replace, page, flags=re.DOTALL)


def main(version: str = "v1") -> None:
    atomic.write_text(PAGE, filled(PAGE.read_text(encoding="utf-8"), blocks(version)))


if __name__ == "__main__":
    main(*sys.argv[1:])

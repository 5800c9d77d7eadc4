"""Readers of recorded arrivals: Azure LLM inference CSV, Mooncake JSONL, and a plain CSV.

The format is told by the content, never by the file's name.

- *Azure* (`TIMESTAMP,ContextTokens,GeneratedTokens`): UTC dates with up to nine fractional digits, with or
  without a fraction and `+00:00` from line to line. Time 0 is the first arrival.
- *Mooncake*: one JSON object a line with `timestamp` (ms), `input_length`, `output_length` and optionally
  `hash_ids`, one a block of 512 prompt tokens, the last block partial. Time 0 is timestamp 0.
- *plain* (`arrival_s,prompt_tokens,output_tokens`): times are kept as they are.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pdenv.errors import InputError
from pdenv.workload.config import MAX_TOKENS

AZURE_HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
PLAIN_HEADER = ("arrival_s", "prompt_tokens", "output_tokens")
MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length")
MOONCAKE_BLOCK_TOKENS = 512

_MAX_TIME_S = 1e9
_DATE = re.compile(r"((?:19|20|21)\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:\+00:00|Z)?", re.ASCII)
_DATE_REMEDY = "write a UTC date like 2023-11-16 18:17:03.9799600"


@dataclass(frozen=True)
class Trace:
    """Recorded requests in order of arrival."""

    arrival_s: np.ndarray  # (n,) float64 s from the start of the trace, never falling
    prompt_tokens: np.ndarray  # (n,) int64
    output_tokens: np.ndarray  # (n,) int64
    block_start: np.ndarray  # (n,) int64 first index into `blocks`
    block_count: np.ndarray  # (n,) int64 prefix blocks of the request, 0 without hashes
    blocks: np.ndarray  # (sum of block_count,) int64 hash ids, renumbered 0, 1, 2, … in ascending order
    name: str  # file name
    format: str  # "azure" | "mooncake" | "plain"

    @property
    def span_s(self) -> float:
        """Time from the first to the last arrival, s."""
        return float(self.arrival_s[-1] - self.arrival_s[0])


def read_trace(path: str | Path, rng: np.random.Generator | None = None) -> Trace:
    """The requests of a trace file.

    Args:
        path: the file.
        rng: draws the jitter inside the ticks of a Mooncake trace; seed 0 if None.

    Raises:
        InputError: the file cannot be read or holds a line that is no request; names file, line and field.
    """
    if not str(path):
        raise InputError("the path of the trace is empty; name a file", where="trace")
    path = Path(path)
    lines = _read_lines(path)
    if lines[0].lstrip().startswith("{"):
        return _read_mooncake(path, lines, rng or np.random.default_rng(0))
    header = tuple(cell.strip() for cell in lines[0].split(","))
    if header not in (AZURE_HEADER, PLAIN_HEADER):
        _refuse_header(path, lines[0])
    if len(lines) == 1:
        raise InputError("the header is followed by no request; give at least one line", where=str(path))
    return _read_csv(path, lines, header)


# ---- text -----------------------------------------------------------------------------------------------


def _read_lines(path: Path) -> list[str]:
    """Lines without their ends and without blank lines at the end of the file; at least one."""
    try:
        special = path.exists() and not (path.is_file() or path.is_dir())
        data = b"" if special else path.read_bytes()
    except FileNotFoundError:
        raise InputError("no such file; check the path", where=str(path)) from None
    except IsADirectoryError:
        raise InputError("a directory, not a trace; name one file in it", where=str(path)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read ({reason}); check the path", where=str(path)) from None
    if special:  # a pipe can be read once only, and every run reads the trace
        raise InputError("not a regular file; save it to a file first", where=str(path))
    if data.startswith(b"\x1f\x8b"):
        raise InputError("gzip-compressed; decompress it first", where=str(path))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse(path, 1 + data.count(b"\n", 0, error.start), "", "not UTF-8 text; save the trace as UTF-8")
    if (nul := text.find("\0")) >= 0:
        line = 1 + text.count("\n", 0, nul)
        _refuse(path, line, "", "a NUL byte: binary or UTF-16, not a trace; save the trace as UTF-8 text")
    text = text.rstrip()
    if not text:
        raise InputError("the file is empty; a trace needs a header or JSON lines", where=str(path))
    return [line.rstrip("\r") for line in text.split("\n")]


def _refuse(path: Path, line: int, field: str, message: str) -> NoReturn:
    where = f"{path}, line {line}" + (f", field {field}" if field else "")
    raise InputError(message, where=where)


def _show(value: object) -> str:
    text = str(value)
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _refuse_header(path: Path, line: str) -> NoReturn:
    if line.lstrip().startswith("["):
        _refuse(path, 1, "", "a JSON array; write one JSON object a line")
    known = [",".join(AZURE_HEADER), ",".join(PLAIN_HEADER)]
    close = difflib.get_close_matches(line.strip()[:200], known, n=1, cutoff=0.5)
    wanted = f"'{close[0]}'" if close else f"'{known[0]}', '{known[1]}' or JSON objects, one a line"
    _refuse(path, 1, "", f"unknown header {_show(line)}; expected {wanted}")


# ---- checks shared by the formats -----------------------------------------------------------------------


def _refuse_length(path: Path, line: int, field: str, value: object, output: bool) -> NoReturn:
    remedy = f"give a whole number from 1 to {MAX_TOKENS:,}"
    if output and str(value) == "0":
        remedy = "0 output tokens mark a failed request: remove the line"
    _refuse(path, line, field, f"{_show(value)} is not a number of tokens; {remedy}")


def _check_lengths(path: Path, field: str, values: np.ndarray, first_line: int, output: bool) -> None:
    bad = np.flatnonzero((values < 1) | (values > MAX_TOKENS))
    if bad.size:
        _refuse_length(path, first_line + int(bad[0]), field, values[bad[0]], output)


def _check_times(path: Path, field: str, seconds: np.ndarray, first_line: int) -> None:
    back = np.flatnonzero(np.diff(seconds) < 0.0)
    if back.size:
        i = int(back[0])
        gap = seconds[i] - seconds[i + 1]
        message = f"time goes back by {gap:.6g} s from the line above; sort the file by {field}"
        _refuse(path, first_line + i + 1, field, message)


def _check_range(path: Path, field: str, seconds: np.ndarray, first_line: int, shown: Sequence[Any]) -> None:
    bad = np.flatnonzero(~((seconds >= 0.0) & (seconds <= _MAX_TIME_S)))
    if bad.size:
        i = int(bad[0])
        remedy = "count the time from the start of the trace, at least 0 and at most 1e9 s"
        _refuse(path, first_line + i, field, f"{_show(shown[i])} is not a time of arrival; {remedy}")


# ---- CSV ------------------------------------------------------------------------------------------------


def _read_csv(path: Path, lines: list[str], header: tuple[str, ...]) -> Trace:
    rows = [line.split(",") for line in lines[1:]]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            message = f"{len(row)} columns instead of {len(header)}; write {','.join(header)}"
            field = header[len(row)] if len(row) < len(header) else header[-1]
            _refuse(path, number, field, message)
    times, prompts, outputs = ([cell.strip() for cell in column] for column in zip(*rows, strict=True))
    azure = header == AZURE_HEADER
    arrival_s = _parse_dates(path, times) if azure else _parse_seconds(path, times)
    _check_times(path, header[0], arrival_s, first_line=2)
    n = len(rows)
    return Trace(
        arrival_s=arrival_s,
        prompt_tokens=_parse_lengths(path, header[1], prompts, output=False),
        output_tokens=_parse_lengths(path, header[2], outputs, output=True),
        block_start=np.zeros(n, np.int64),
        block_count=np.zeros(n, np.int64),
        blocks=np.zeros(0, np.int64),
        name=path.name,
        format="azure" if azure else "plain",
    )


def _parse_lengths(path: Path, field: str, cells: list[str], output: bool) -> np.ndarray:
    for number, cell in enumerate(cells, start=2):
        if not cell.isdecimal() or len(cell) > 12:
            _refuse_length(path, number, field, cell, output)
    values = np.array([int(cell) for cell in cells], np.int64)
    _check_lengths(path, field, values, first_line=2, output=output)
    return values


def _parse_dates(path: Path, cells: list[str]) -> np.ndarray:
    """Seconds since the first date; nanoseconds are exact because the subtraction is in integers."""
    dates = []
    for number, cell in enumerate(cells, start=2):
        match = _DATE.fullmatch(cell)
        if match is None:
            _refuse(path, number, AZURE_HEADER[0], f"{_show(cell)} is not a date; {_DATE_REMEDY}")
        dates.append(match.group(1))
    try:
        stamps = np.array(dates, "datetime64[ns]")
    except ValueError:
        for number, date in enumerate(dates, start=2):
            try:
                np.datetime64(date, "ns")
            except ValueError:
                _refuse(path, number, AZURE_HEADER[0], f"{_show(date)} does not exist; {_DATE_REMEDY}")
        raise
    return (stamps - stamps[0]).astype(np.int64) * 1e-9


def _parse_seconds(path: Path, cells: list[str]) -> np.ndarray:
    values = []
    for number, cell in enumerate(cells, start=2):
        try:
            values.append(float(cell))
        except ValueError:
            _refuse(path, number, PLAIN_HEADER[0], f"{_show(cell)} is not a number; give the arrival in s")
    seconds = np.array(values)
    _check_range(path, PLAIN_HEADER[0], seconds, first_line=2, shown=cells)
    return seconds


# ---- Mooncake -------------------------------------------------------------------------------------------


def _read_mooncake(path: Path, lines: list[str], rng: np.random.Generator) -> Trace:
    rows = [_parse_json(path, number, line) for number, line in enumerate(lines, start=1)]
    ticks = np.array([row["timestamp"] for row in rows], np.float64) * 1e-3
    _check_range(path, "timestamp", ticks, first_line=1, shown=[row["timestamp"] for row in rows])
    _check_times(path, "timestamp", ticks, first_line=1)
    prompts = np.array([row["input_length"] for row in rows], np.int64)
    outputs = np.array([row["output_length"] for row in rows], np.int64)
    counts = np.array([len(row.get("hash_ids", ())) for row in rows], np.int64)
    too_many = np.flatnonzero(counts > -(-prompts // MOONCAKE_BLOCK_TOKENS))
    if too_many.size:
        i = int(too_many[0])
        message = f"{counts[i]} blocks for {prompts[i]} prompt tokens; give one hash a block of 512 tokens"
        _refuse(path, i + 1, "hash_ids", message)
    hashes = np.fromiter(chain.from_iterable(row.get("hash_ids", ()) for row in rows), np.int64)
    return Trace(
        arrival_s=spread_ticks(ticks, rng),
        prompt_tokens=prompts,
        output_tokens=outputs,
        block_start=np.cumsum(counts) - counts,
        block_count=counts,
        blocks=np.unique(hashes, return_inverse=True)[1].astype(np.int64),
        name=path.name,
        format="mooncake",
    )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _parse_json(path: Path, number: int, line: str) -> dict[str, Any]:
    """One request with the fields' types and ranges checked."""
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:80]
        _refuse(path, number, "", f"not a JSON object ({reason}); is the file cut short?")
    if not isinstance(row, dict):
        _refuse(path, number, "", f"{_show(row)} is not a JSON object; write one object a line")
    for field in MOONCAKE_FIELDS:
        if field not in row:
            _refuse(path, number, field, f"the field is missing; a request has {', '.join(MOONCAKE_FIELDS)}")
    time_ms = row["timestamp"]
    if type(time_ms) not in (int, float) or not 0 <= time_ms <= _MAX_TIME_S * 1e3:
        message = f"{_show(time_ms)} is not a time; give ms from the start of the trace, at least 0"
        _refuse(path, number, "timestamp", message)
    for field in MOONCAKE_FIELDS[1:]:
        if type(row[field]) is not int or not 1 <= row[field] <= MAX_TOKENS:
            _refuse_length(path, number, field, row[field], output=field == "output_length")
    _check_hashes(path, number, row.get("hash_ids", []))
    return row


def _check_hashes(path: Path, number: int, hashes: object) -> None:
    if not isinstance(hashes, list):
        _refuse(path, number, "hash_ids", f"{_show(hashes)} is not a list; give a list of whole numbers")
    for value in hashes:
        if type(value) is not int or not -(2**63) <= value < 2**63:
            _refuse(path, number, "hash_ids", f"{_show(value)} is not a hash; give whole numbers of 64 bits")


def spread_ticks(ticks_s: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Arrival times spread uniformly over the tick that each was rounded down to.

    A clock is taken to tick coarsely when at least two requests share a timestamp on average. The length of a
    tick is then the median distance of distinct timestamps; nothing is moved beyond the next timestamp.

    Args:
        ticks_s: `(n,)` timestamps, never falling, s.
        rng: draws the position inside the tick.

    Returns:
        `(n,)` never falling times, s; `ticks_s` itself where the clock is fine.
    """
    distinct, group = np.unique(ticks_s, return_inverse=True)
    if len(distinct) < 2 or len(ticks_s) < 2 * len(distinct):
        return ticks_s
    gaps = np.diff(distinct)
    tick = float(np.median(gaps))
    width = np.append(np.minimum(gaps, tick), tick)
    return np.sort(ticks_s + rng.random(len(ticks_s)) * width[group])

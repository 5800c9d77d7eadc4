"""Readers of recorded arrivals: the traps of the public formats, and what is said about other files."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdenv.errors import InputError
from pdenv.workload.traces import read_trace, spread_ticks

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
PLAIN = "arrival_s,prompt_tokens,output_tokens"
DAY = "2023-11-16 18:17"


def write(tmp_path: Path, content: str | bytes, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def mooncake(*rows: tuple) -> str:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(keys, row, strict=False))) + "\n" for row in rows)


# ---- what must be read ----------------------------------------------------------------------------------


def test_azure_crlf_seven_digits_and_no_newline_at_the_end(tmp_path):
    path = write(tmp_path, f"{AZURE}\r\n{DAY}:03.9799600,4808,10\r\n{DAY}:04.0319601,3180,8")
    trace = read_trace(path)
    assert trace.format == "azure"
    assert trace.arrival_s == pytest.approx([0.0, 0.0520001], abs=1e-12)
    assert trace.prompt_tokens.tolist() == [4808, 3180]
    assert trace.output_tokens.tolist() == [10, 8]
    assert trace.block_count.tolist() == [0, 0]


def test_azure_2024_mixes_rows_with_and_without_fraction_and_zone(tmp_path):
    rows = ["23:59:59.500000+00:00,5,1", "23:59:59.750000+00:00,6,2"]
    text = "\n".join([AZURE, *(f"2024-05-10 {row}" for row in rows), "2024-05-11 00:00:00+00:00,7,3", ""])
    assert read_trace(write(tmp_path, text)).arrival_s == pytest.approx([0.0, 0.25, 0.5], abs=1e-12)


def test_format_is_told_by_content_and_not_by_name(tmp_path):
    assert read_trace(write(tmp_path, mooncake((0, 600, 5, [0, 1])), "a.csv")).format == "mooncake"
    assert read_trace(write(tmp_path, f"{PLAIN}\n0.5,2,3\n", "a.jsonl")).format == "plain"
    assert read_trace(write(tmp_path, f"\ufeff{AZURE}\n{DAY}:03,2,3\n", "a")).format == "azure"


def test_plain_times_are_kept(tmp_path):
    trace = read_trace(write(tmp_path, f"{PLAIN}\n0.046515178,1020,211\n1e1,7,1\n\n"))
    assert trace.arrival_s.tolist() == [0.046515178, 10.0]
    assert trace.span_s == pytest.approx(9.953484822)


def test_mooncake_hashes_are_renumbered_densely_and_sliced_by_request(tmp_path):
    rows = mooncake((0, 1000, 5, [0, 77]), (1, 200, 6), (2, 1025, 7, [0, 77, 9_000_000_000]))
    trace = read_trace(write(tmp_path, rows))
    assert trace.blocks.tolist() == [0, 1, 0, 1, 2]
    assert trace.blocks.dtype == np.int64
    assert trace.block_start.tolist() == [0, 2, 2]
    assert trace.block_count.tolist() == [2, 0, 3]


def test_mooncake_ticks_are_spread_inside_the_tick_in_order_and_by_seed(tmp_path):
    ticks = np.repeat(np.arange(50) * 3000, 20)
    path = write(tmp_path, mooncake(*((int(t), 100, 1, [0]) for t in ticks)))
    times = [read_trace(path, np.random.default_rng(seed)).arrival_s for seed in (1, 1, 2)]
    offset = times[0] - ticks / 1e3
    assert np.all(np.diff(times[0]) >= 0)
    assert np.all((offset >= 0) & (offset < 3.0))
    # Uniform in [0, 3): mean 1.5 ± 4 standard errors, standard deviation 3/√12.
    assert offset.mean() == pytest.approx(1.5, abs=4 * 3 / np.sqrt(12 * len(ticks)))
    assert offset.std() == pytest.approx(3 / np.sqrt(12), rel=0.05)
    assert np.array_equal(times[0], times[1])
    assert not np.array_equal(times[0], times[2])


def test_a_fine_clock_is_left_alone():
    times = np.array([0.0, 0.010, 0.010, 0.450, 1.2])
    assert spread_ticks(times, np.random.default_rng(0)) is times


def test_a_missing_tick_does_not_widen_the_jitter():
    ticks = np.repeat([0.0, 3.0, 6.0, 30.0], 100)
    offset = spread_ticks(ticks, np.random.default_rng(0)) - ticks
    assert offset.min() >= 0.0
    assert offset.max() < 3.0


PUBLIC = {
    "azure_2023_code.csv": (8819, 3436, 13.2, (2048, 1469, 5188, 7436, 7437), (27.9, 13, 55, 251, 1899)),
    "azure_2023_conv.csv": (19366, 3502, 1.09, (1155, 1020, 2735, 4142, 14050), (211, 129, 424, 601, 1000)),
    "mooncake_conversation.jsonl": (
        12031,
        3537,
        1.0,  # 3.03 in the file is an artefact of its ticks; spread, the arrivals are nearly Poisson
        (12035, 6909, 27367, 85400, 126195),
        (343, 350, 597, 1119, 2000),
    ),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_traces_have_their_published_statistics(shared_dir, name):
    requests, span_s, gap_cv, prompt, output = PUBLIC[name]
    trace = read_trace(shared_dir / "traces" / name)
    gaps = np.diff(trace.arrival_s)
    assert len(trace.arrival_s) == requests
    assert trace.span_s == pytest.approx(span_s, abs=4.0)
    assert gaps.std() / gaps.mean() == pytest.approx(gap_cv, rel=0.03)
    for values, (mean, p50, p90, p99, largest) in (
        (trace.prompt_tokens, prompt),
        (trace.output_tokens, output),
    ):
        assert values.mean() == pytest.approx(mean, rel=2e-3)
        assert np.quantile(values, [0.5, 0.9, 0.99]) == pytest.approx([p50, p90, p99], rel=2e-3)
        assert values.max() == largest


def test_public_mooncake_requests_share_block_zero(shared_dir):
    trace = read_trace(shared_dir / "traces" / "mooncake_conversation.jsonl")
    assert np.all(trace.blocks[trace.block_start] == 0)
    assert np.array_equal(trace.block_count, -(-trace.prompt_tokens // 512))


# ---- what must be refused -------------------------------------------------------------------------------

GOOD = f"{DAY}:03.5,10,10"
BAD_LINES = {
    # name: (content, line, field, words)
    "header unknown": ("a,b,c\n1,2,3\n", 1, None, "unknown header 'a,b,c'"),
    "header close": ("TIMESTAMP,ContextToken,GeneratedTokens\n", 1, None, f"expected '{AZURE}'"),
    "headless": (f"{GOOD}\n", 1, None, "unknown header"),
    "json array": ('[{"timestamp": 0}]\n', 1, None, "one JSON object a line"),
    "azure negative": (f"{AZURE}\n{GOOD}\n{DAY}:04,-5,10\n", 3, "ContextTokens", "'-5'"),
    "azure zero prompt": (f"{AZURE}\n{DAY}:04,0,10\n", 2, "ContextTokens", "'0'"),
    "azure failed": (f"{AZURE}\n{GOOD}\n{DAY}:04,5,0\n", 3, "GeneratedTokens", "failed request: remove"),
    "azure absurd": (f"{AZURE}\n{DAY}:04,10000001,10\n", 2, "ContextTokens", "10,000,000"),
    "azure beyond int64": (f"{AZURE}\n{DAY}:04,5,{'9' * 60}\n", 2, "GeneratedTokens", "..."),
    "azure nan": (f"{AZURE}\n{DAY}:04,nan,10\n", 2, "ContextTokens", "'nan'"),
    "azure float": (f"{AZURE}\n{DAY}:04,5,1.5\n", 2, "GeneratedTokens", "whole number"),
    "azure empty cell": (f"{AZURE}\n{DAY}:04,,10\n", 2, "ContextTokens", "''"),
    "azure no date": (f"{AZURE}\nyesterday,5,10\n", 2, "TIMESTAMP", "'yesterday' is not a date"),
    "azure impossible day": (f"{AZURE}\n{GOOD}\n2023-02-30 00:00:00,5,1\n", 3, "TIMESTAMP", "does not exist"),
    "azure other zone": (f"{AZURE}\n{DAY}:04+02:00,5,10\n", 2, "TIMESTAMP", "UTC"),
    "azure epoch": (f"{AZURE}\n1700158623,5,10\n", 2, "TIMESTAMP", "is not a date"),
    "azure goes back": (f"{AZURE}\n{GOOD}\n{DAY}:03.4,5,1\n", 3, "TIMESTAMP", "back by 0.1 s"),
    "azure cut": (f"{AZURE}\n{GOOD}\n{DAY}:04.1,10", 3, "GeneratedTokens", "2 columns instead of 3"),
    "azure too many columns": (f"{AZURE}\n{GOOD},9\n", 2, "GeneratedTokens", "4 columns instead of 3"),
    "azure blank line": (f"{AZURE}\n\n{GOOD}\n", 2, "ContextTokens", "1 columns instead of 3"),
    "plain nan": (f"{PLAIN}\nnan,5,10\n", 2, "arrival_s", "'nan' is not a time"),
    "plain inf": (f"{PLAIN}\n0,5,1\ninf,5,10\n", 3, "arrival_s", "'inf' is not a time"),
    "plain negative time": (f"{PLAIN}\n-1,5,10\n", 2, "arrival_s", "'-1' is not a time"),
    "plain epoch": (f"{PLAIN}\n1700158623.5,5,10\n", 2, "arrival_s", "from the start of the trace"),
    "plain text time": (f"{PLAIN}\nsoon,5,10\n", 2, "arrival_s", "'soon' is not a number"),
    "plain unsorted": (f"{PLAIN}\n1,5,1\n3,5,1\n2,5,1\n", 4, "arrival_s", "sort the file by arrival_s"),
    "json cut": (mooncake((0, 5, 1, [0])) + '{"timestamp": 1, "inp', 2, None, "cut short"),
    "json field missing": ('{"timestamp": 0, "input_length": 5}\n', 1, "output_length", "missing"),
    "json nan": ('{"timestamp": NaN, "input_length": 5}\n', 1, None, "NaN"),
    "json text": (mooncake(("0", 5, 1)), 1, "timestamp", "'0' is not a time"),
    "json bool": (mooncake((True, 5, 1)), 1, "timestamp", "'True' is not a time"),
    "json negative": (mooncake((0, 5, 1), (1, -5, 1)), 2, "input_length", "'-5'"),
    "json failed": (mooncake((0, 5, 0)), 1, "output_length", "failed request: remove"),
    "json absurd": (mooncake((0, 10**30, 1)), 1, "input_length", "10,000,000"),
    "json float length": (mooncake((0, 5.0, 1)), 1, "input_length", "whole number"),
    "json goes back": (mooncake((3000, 5, 1), (0, 5, 1)), 2, "timestamp", "back by 3 s"),
    "json hashes no list": (mooncake((0, 5, 1, 7)), 1, "hash_ids", "list"),
    "json hashes text": (mooncake((0, 5, 1, ["x"])), 1, "hash_ids", "'x'"),
    "json other block size": (mooncake((0, 512, 1, [0, 1])), 1, "hash_ids", "2 blocks for 512 prompt tokens"),
    "json then csv": (mooncake((0, 5, 1)) + "1,2,3\n", 2, None, "not a JSON object"),
    "json list line": (mooncake((0, 5, 1)) + "[1]\n", 2, None, "not a JSON object"),
    "json deep": (mooncake((0, 5, 1)) + '{"a":' + "[" * 200_000, 2, None, "not a JSON object"),
    "nul byte": (f"{AZURE}\n{GOOD}\n\0\0", 3, None, "NUL byte"),
    "not utf-8": (f"{AZURE}\n{GOOD}\n".encode() + b"\xff\xfe,1,1", 3, None, "UTF-8"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named(tmp_path, case):
    content, line, field, words = BAD_LINES[case]
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    message = str(caught.value)
    where = f"{path}, line {line}" + (f", field {field}" if field else "")
    assert message.startswith(f"{where}: ")
    assert words in message
    assert "\n" not in message
    assert len(message) < 300 + len(str(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        (" \n\r\n", "empty"),
        (f"{AZURE}\n", "no request"),
        (PLAIN, "no request"),
        (b"\x1f\x8b\x08\x00abc", "decompress"),
    ],
)
def test_a_file_without_requests_is_refused(tmp_path, content, words):
    path = write(tmp_path, content)
    with pytest.raises(InputError, match=words) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(("name", "words"), [("absent.csv", "no such file"), (".", "directory"), ("x" * 300, "read")])
def test_a_path_that_is_no_file_is_refused(tmp_path, name, words):
    with pytest.raises(InputError, match=words) as caught:
        read_trace(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file; save it to a file first"):
        read_trace(tmp_path / "pipe")


def test_an_empty_path_is_refused():
    with pytest.raises(InputError, match="the path of the trace is empty"):
        read_trace("")


def _reads_or_refuses(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), content)
        try:
            trace = read_trace(path)
        except InputError as error:
            assert "\n" not in str(error)
            return
    assert len(trace.arrival_s) >= 1
    assert np.all(np.diff(trace.arrival_s) >= 0)
    assert np.all(trace.prompt_tokens >= 1)
    assert np.all(trace.output_tokens >= 1)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(content):
    _reads_or_refuses(content)


cells = st.sampled_from(["0", "5", "-1", "1e3", "nan", "", "٣", "1_0", " 7", GOOD, "{", "}", '"timestamp"', "\r", ":"])
headers = st.sampled_from([AZURE, PLAIN, mooncake((0, 5, 1, [0])).strip()])


@settings(max_examples=300, deadline=None)
@given(headers, st.lists(st.lists(cells, max_size=4), max_size=4))
def test_near_misses_are_read_or_refused(header, rows):
    _reads_or_refuses("\n".join([header, *(",".join(row) for row in rows)]).encode())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda v: st.lists(v, max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids"]), json_values))
def test_odd_json_is_read_or_refused(row):
    _reads_or_refuses(json.dumps({"timestamp": 0, "input_length": 900, "output_length": 1, **row}).encode())

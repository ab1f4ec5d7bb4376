"""The benchmark runs, merges several runs, and finds figures that got worse; the docs quote its results."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from bench import __main__, capacity, load_generator, quoted, results
from bench.figures import HIGHER_IS_BETTER, Latencies, Row, merged, worse

ROOT = Path(__file__).parents[2]


def latency(value: float, goal: float = math.nan, server: str = "kafkasse") -> Row:
    return Row("load.cpu", server, "a load: CPU", value, "µs", goal)


def runs(*values: float) -> Row:
    (row,) = merged([latency(value)] for value in values)
    return row


def percentiles(*runs_ms: list[float]) -> dict[str, Row]:
    rows = merged([Latencies("load", "kafkasse", "a load", values, {99: 5.0})] for values in runs_ms)
    return {row.key: row for row in rows}


def test_a_figure_is_the_median_of_its_runs_with_their_spread():
    row = runs(3.0, 1.0, 2.0)

    assert (2.0, 1.0, 3.0, 3) == (row.value, row.low, row.high, row.runs)


def test_a_run_that_measured_nothing_does_not_count():
    row = runs(math.nan, 1.0, 3.0)

    assert (2.0, 2) == (row.value, row.runs)


def test_the_rows_of_a_baseline_are_its_own():
    rows = merged([[latency(1.0), latency(5.0, server="Go")], [latency(3.0), latency(7.0, server="Go")]])

    assert {("kafkasse", 2.0), ("Go", 6.0)} == {(row.server, row.value) for row in rows}


def test_a_percentile_is_that_of_the_samples_of_all_runs():
    """Each run alone has too few samples for a 99th percentile; the spread is that of the runs."""
    rows = percentiles([1.0] * 60_000, [3.0] * 60_000)

    assert {"load.p50", "load.p99"} == set(rows)
    assert (3.0, 1.0, 3.0, 2, 120_000, 5.0) == (
        rows["load.p99"].value, rows["load.p99"].low, rows["load.p99"].high, rows["load.p99"].runs,
        rows["load.p99"].samples, rows["load.p99"].goal,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("samples", "keys"),
    [
        (1_999, set()),
        (2_000, {"load.p50"}),
        (19_999, {"load.p50", "load.p90"}),
        (99_999, {"load.p50", "load.p95"}),
        (100_000, {"load.p50", "load.p99"}),
    ],
)
def test_at_least_a_thousand_samples_are_above_a_percentile(samples, keys):
    assert keys == set(percentiles([1.0] * samples))


def test_a_missed_goal_is_marked():
    assert "10, **missed**" in results.table([latency(11.0, goal=10.0)])
    assert "10, reached" in results.table([latency(10.0, goal=10.0)])


@pytest.mark.parametrize("unit", HIGHER_IS_BETTER)
def test_a_rate_or_a_share_below_its_goal_misses_it(unit):
    row = Row("key", "kafkasse", "figure", 90.0, unit, goal=100.0)

    assert row.misses_goal


@pytest.mark.parametrize(
    ("after", "before", "sentence"),
    [
        (runs(13.5, 14.0, 14.5), runs(10.0, 11.0, 12.0), "kafkasse: a load: CPU [µs]: 14, was 11"),
        (runs(12.0, 12.5, 13.0), runs(10.0, 11.0, 12.0), ""),  # within the spread
        (runs(1.0, 1.0, 1.0), runs(10.0, 11.0, 12.0), ""),
        (latency(10.9), latency(10.0), ""),  # the spread of a single run counts as ten percent
        (latency(11.5), latency(10.0), "kafkasse: a load: CPU [µs]: 11.5, was 10"),
    ],
)
def test_a_figure_got_worse_if_it_changed_by_more_than_its_spread(after, before, sentence):
    assert sentence == worse(after, before)


def test_results_have_one_row_per_line(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "DATA", tmp_path / "results.json")
    rows = [latency(1.0, goal=2.0), latency(3.0, server="Go")]

    results.write({"commit": "abc", "code": "def"}, rows, {})

    lines = results.DATA.read_text().splitlines()
    assert 4 == len(lines)
    assert [("load.cpu", "kafkasse"), ("load.cpu", "Go")] == list(results.rows_of(json.loads("\n".join(lines))))


def test_the_page_contains_all_rows_and_draws_figures_of_several_servers(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "DATA", tmp_path / "results.json")
    rows = [latency(1.0), latency(2.0, server="Go"), latency(4.0, server="Starlette")]
    results.write({"commit": "abc"}, [*rows, Row("other.rate", "kafkasse", "a rate", 7.0, "records/s")], {})

    text, pictures = results.page()

    assert "- commit: abc" in text
    assert "| a rate | kafkasse | 7 records/s |" in text
    assert "(images/load.cpu.svg)" in text
    assert ["340", "170", "85"] == re.findall(r'width="(\d+)" height="18"', pictures["images/load.cpu.svg"])[::-1]


def test_the_code_has_changed_if_more_than_comments_and_docstrings_change(tmp_path):
    module = tmp_path / "kafkasse" / "feed.py"
    module.parent.mkdir()

    hashes = []
    for text in ('"""A."""\nx = 1\n', '"""B."""\n\n# why\nx = 1  # here\n', '"""A."""\nx = 2\n'):
        module.write_text(text)
        hashes.append(results.code(tmp_path))

    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("part", results.PARTS)
def test_code_that_one_part_measures_makes_only_this_part_older(tmp_path, part):
    """Each file of a part exists, so that a renamed one is not forgotten."""
    names = results.PARTS[part]
    module = tmp_path / (names[-1] + "steps.py" if names[-1].endswith("/") else names[-1])
    module.parent.mkdir(parents=True)

    hashes = []
    for text in ("x = 1\n", "x = 2\n"):
        module.write_text(text)
        hashes.append(results.code(tmp_path))

    assert all((ROOT / name).exists() for name in names)
    assert [part] == [name for name in hashes[0] if hashes[0][name] != hashes[1][name]]


@pytest.mark.parametrize(
    ("changed", "command"),
    [
        ((), ""),
        (("pipeline", "cdn"), "run python -m bench.results cdn pipeline."),
        (("cdn", results.OTHERS), "run make bench."),
    ],
)
def test_results_of_other_code_are_reported(tmp_path, monkeypatch, capsys, changed, command):
    monkeypatch.setattr(results, "DATA", tmp_path / "results.json")
    stored = results.code() | dict.fromkeys(changed, "of an earlier commit")
    results.DATA.write_text(json.dumps({"commit": "abc", "code": stored}))

    code = results.main()

    expected = f"bench/results.json is of commit abc. The measured code has changed: {command}\n" if changed else ""
    assert (int(bool(changed)), expected) == (code, capsys.readouterr().out)


ROWS = {(row.key, row.server): row for row in (latency(1234.0), latency(617.0, server="Go"))}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It takes 1,200 µs<!-- load.cpu --> or 1.2 ms of CPU<!-- load.cpu -->.", 0),
        ("twice as much, 2 times as much<!-- load.cpu / load.cpu@Go --> as Go", 0),
        ("? µs<!-- other.cpu -->", 1),
        ("1,200 µs<!-- load.cpu@Goo -->", 1),
        ("2 times as much<!-- load.cpu / laod.cpu@Go -->", 1),
        ("`1,300 µs` in code", 0),
        ("1,300 µs<!-- load.cpu -->", 1),
        ("17 µs<!-- other.cpu -->", 1),
        ("Each costs 17 µs.", 1),
        ("Each costs 17 µs<!-- by hand -->.", 0),
        ("1.2 ms<!-- load.cpu --> for clients at 200 records/s, not 5 ms", 1),
        ("a timeout of 5 ms", 0),
    ],
)
def test_a_quoted_figure_equals_its_row(text, count):
    assert count == len(list(quoted.problems(text, ROWS)))


def test_new_figures_replace_those_in_a_text():
    text = "9 ms<!-- load.cpu -->, 3 µs<!-- by hand -->, ?<!-- load.cpu / load.cpu@Go --> times"

    assert "1.2 ms<!-- load.cpu -->, 3 µs<!-- by hand -->, 2<!-- load.cpu / load.cpu@Go --> times" == quoted.rewritten(
        text, ROWS
    )


def test_a_measurement_that_fails_does_not_end_the_run(monkeypatch, capsys):
    """The others are measured with a new broker and new clients, and the exit code tells that one has failed."""

    def fail(testbed: object) -> list[Row]:
        raise RuntimeError("no records")

    monkeypatch.setattr(__main__, "MEASUREMENTS", {"first": fail, "second": lambda testbed: [latency(17.0)]})
    monkeypatch.setattr(__main__, "Testbed", lambda *args: nullcontext())
    monkeypatch.setattr(__main__.signal, "signal", lambda *args: None)
    monkeypatch.setattr(__main__.results, "origin", dict)
    monkeypatch.setattr(__main__.servers, "missing", lambda build: {})
    monkeypatch.setattr("sys.argv", ["bench", "--quick"])

    assert 1 == __main__.main()

    output = capsys.readouterr()
    assert "first failed: RuntimeError: no records" in output.err
    assert "| 17 µs |" in output.out


STORED = results.rows_of(json.loads(results.DATA.read_text()))


@pytest.mark.parametrize("page", quoted.pages(), ids=lambda page: page.name)
def test_the_figures_of_a_page_are_those_of_the_results(page):
    assert [] == list(quoted.problems(page.read_text(), STORED))


def test_the_tables_about_capacity_are_those_of_the_results():
    texts = {page: page.read_text() for page in (quoted.CAPACITY, quoted.CHECKS)}

    assert texts == {page: quoted.with_tables(page, STORED) for page in texts}
    for table in capacity.tables(STORED).split("\n\n"):
        assert 1 == "".join(texts.values()).count(table)


def test_no_server_delivers_more_than_the_load_generator_can_receive():
    """Otherwise, a figure would be that of the load generator."""
    limits = {row.unit: row.value for row in STORED.values() if row.server == load_generator.SENDER}

    assert [] == [row for row in STORED.values() if row.value > limits.get(row.unit, math.inf)]


def costs(**values: float) -> dict[tuple[str, str], Row]:
    """Rows with 10 µs for a write, 0.5 µs for one more record, 500 µs for a fetch; the same with TLS."""
    figures = {"costs.write": 10, "costs.record": 0.5, "costs.open": 0.5, "costs.memory": 3}
    tls = {f"costs.tls.{name}": 20 for name in ("write", "open", "memory")}
    keys = {f"capacity.{name}": value for name, value in (figures | tls).items()}
    others = {"live.1x200.cpu": 500, "idle.10000.base": 60, **values}
    return {(key, "kafkasse"): Row(key, "kafkasse", "", value, "") for key, value in (keys | others).items()}


def test_a_worker_with_rare_records_writes_each_of_them_separately():
    """5,000 writes of 10 µs and a fetch, five times per second; the last client waits for all writes."""
    use = capacity.use(capacity.costs_of(costs()), clients=5_000, rate=5)

    assert pytest.approx((0.2525, 0.02525, 0.0505)) == (use.cores, use.median_s, use.longest_s)


def test_more_records_share_a_write():
    """A turn of 49.9 ms (29.9 of writes, 20 of pause) contains about 5 records."""
    use = capacity.use(capacity.costs_of(costs()), clients=2_500, rate=100)

    assert 0.58 < use.cores < 0.62
    assert 0.07 < use.longest_s < 0.09


def test_the_tables_show_how_much_the_formula_deviates_from_each_run():
    cores = {run.key: 0.0 for run in (*capacity.CHECKED, *capacity.OTHERS)}
    for run, computed, _, _ in capacity.checks(costs(**{f"{key}.cores": 1.0 for key in cores})):
        cores[run.key] = computed * (200 if run.tls else 100)

    text = capacity.tables(costs(**{f"{key}.cores": value for key, value in cores.items()}))

    assert [0] * 6 + [-50] == [int(percent) for percent in re.findall(r"([+-]\d+)%", text)]


@pytest.mark.parametrize("run", capacity.CHECKED, ids=str)
def test_the_formula_agrees_with_a_run(run):
    """The computed share of a core deviates from the measured one by at most a fifth."""
    if not STORED:
        return
    deviations = {other: abs(computed / measured - 1) for other, computed, measured, _ in capacity.checks(STORED)}

    assert deviations[run] <= capacity.ALLOWED_DEVIATION


@pytest.mark.processes
@pytest.mark.parametrize("part", range(3))
def test_every_measurement_runs(part):
    """In its quick form, with the baselines that are installed. The pipelines have tests of their own."""
    before = results.DATA.read_bytes()
    names = [name for name in __main__.MEASUREMENTS if name != "pipeline"]
    command = [sys.executable, "-m", "bench", "--quick", "--only", *names[part::3]]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr
    assert 0 == done.stdout.count("| 0 % |"), done.stdout
    assert before == results.DATA.read_bytes()

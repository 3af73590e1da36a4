# SPDX-License-Identifier: Apache-2.0
"""Runs become a table, a file and a plot."""

from pathlib import Path
from typing import Any

from rich.console import Console

from vllm_radix.bench.replay.report import Report
from vllm_radix.bench.replay.results import Bounds, Run


def run(scheduler: str, capacity: int, seed: int, hit_rate: float, **changes: Any) -> Run:
    values: dict[str, Any] = {
        "num_requests": 10,
        "num_finished": 10,
        "makespan": 5.0,
        "ttft_p50": 0.5,
        "ttft_p90": 0.9,
        "ttft_p99": 0.99,
        "ttft_max": 1.0,
        "throughput": 1234.0,
        "scheduler_ms_p50": 0.1,
        "scheduler_ms_p99": 0.2,
        "num_steps": 7,
        "evicted_blocks": 3,
        "preemptions": 1,
    }
    return Run(
        scheduler=scheduler,
        capacity=capacity,
        seed=seed,
        hit_rate=hit_rate,
        **{**values, **changes},
    )


def make_report() -> Report:
    runs = [
        run("stock", 2000, 0, 0.5),
        run("stock", 1000, 0, 0.2),
        run("radix", 1000, 0, 0.4, evicted_blocks=None),
        run("stock", 1000, 1, 0.4, makespan=7.0),
        run("radix", 1000, 1, 0.9, num_finished=4),
    ]
    bounds = [
        Bounds(capacity=1000, seed=seed, order_of="stock", unlimited=0.9, clairvoyant=clairvoyant)
        for seed, clairvoyant in enumerate((0.6, 0.8))
    ]
    return Report(
        workload="agents",
        num_requests=10,
        num_prompt_tokens=99,
        settings={"block_size": 16},
        runs=runs,
        bounds=bounds,
    )


def test_means_are_over_seeds_and_complete_runs() -> None:
    means = make_report().means()
    assert [(one.capacity, one.scheduler, one.hit_rate) for one in means] == [
        (1000, "stock", (0.2 + 0.4) / 2),
        (1000, "radix", 0.4),
        (1000, "radix", 0.9),
        (2000, "stock", 0.5),
    ]
    assert means[0].makespan == 6.0
    bounds = make_report().mean_bounds(1000)
    assert bounds is not None
    assert bounds.clairvoyant == (0.6 + 0.8) / 2
    assert make_report().mean_bounds(2000) is None


def test_the_table_has_a_row_for_each_mean_and_bound() -> None:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(make_report().table())
    text = console.export_text()
    legend = " ".join(text.rpartition("┘")[2].split())
    assert "clairvoyant: Belady's eviction, which knows every later request" in legend
    assert "unlimited cache: nothing is ever evicted." in legend
    assert "agents: 10 requests, means over 2 seeds" in text
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    cells = [row for row in rows if len(row) > 2]
    figures = "1,000 stock 0.300 6.0 0.50 0.90 0.99 1.00 1,234 0.10 0.20 3 1"
    assert cells[0] == figures.split()
    assert cells[1][-2] == "-"
    assert "radix (stopped after 4 of 10)" in text
    assert [row[2] for row in cells if "clairvoyant" in row[1]] == ["0.700"]
    assert [row[2] for row in cells if "unlimited" in row[1]] == ["0.900"]


def test_a_legend_explains_only_what_is_there() -> None:
    report = make_report()
    report.bounds = []
    assert "Belady" not in str(report.table().caption)


def test_the_file_holds_every_run(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    report = make_report()
    report.write_json(path)
    assert Report.model_validate_json(path.read_text()) == report
    assert [one.name for one in tmp_path.iterdir()] == ["report.json"]


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    make_report().write_plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")

# SPDX-License-Identifier: Apache-2.0
"""The report is one file that draws everything and asks nobody."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_radix.bench.ab import report
from vllm_radix.bench.ab.plots import hit_rate_over_time, plots, usage_over_time
from vllm_radix.bench.ab.results import Results, Sample

from .samples import make_results

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
# Widths in CSS pixels.
SCREENS = {"phone": (390, 844), "desktop": (1280, 900)}


def test_it_holds_what_was_measured() -> None:
    html = report.render(make_results())
    text = " ".join(re.sub(r"<[^>]+>", " ", html).split())
    assert "radix against stock" in text
    assert "better" in text
    assert "49 of 50" in text
    assert "agent-3, turn 2, token 12" in text
    assert "(gap 0.0009)" in text
    # What a model says is text, not HTML.
    assert "a &lt;b&gt;lamp&lt;/b&gt;" in html
    assert "x86_64 &lt;no GPU&gt;" in html
    assert html.count('<img src="data:image/svg+xml;base64,') == 6


def test_it_names_nothing_outside_itself() -> None:
    html = report.render(make_results())
    for attribute in re.findall(r'(?:src|href|action|poster)\s*=\s*"([^"]*)"', html):
        assert attribute.startswith("data:")
    assert "url(" not in html
    assert "@import" not in html
    assert "<script" not in html


def test_a_stopped_run_is_reported() -> None:
    results = make_results(rounds=1)
    results.runs = results.runs[:1]
    results.runs[0].is_complete = False
    results.comparisons, results.changes = [], []
    results.error = "The server <a> ended."
    html = report.render(results)
    assert "Ended early: The server &lt;a&gt; ended." in html
    assert "<img" not in html


def test_an_open_loop_has_no_turns() -> None:
    results = make_results(rounds=1)
    for run in results.runs:
        run.requests = [
            request.model_copy(update={"turn": 0, "cached_tokens": None})
            for request in run.requests
        ]
    titles = [plot.title for plot in plots(results)]
    assert "Hit rate over time" in titles
    assert not [title for title in titles if title.endswith("by turn")]


def test_the_hit_rate_is_that_of_a_window() -> None:
    samples = [
        Sample(
            time=float(time),
            queries=100.0 * min(time, 12),
            hits=0.0 if time <= 6 else 100.0 * (min(time, 12) - 6),
            preemptions=0,
            kv_usage=0,
            running=0,
            waiting=0,
        )
        for time in range(25)
    ]
    times, shares = hit_rate_over_time(samples)
    found = dict(zip(times, shares, strict=True))
    assert found[6.0] == 0.0
    assert found[12.0] == 1.0
    # Nothing was looked up in the second half.
    assert max(times) < 16
    assert hit_rate_over_time([]) == ([], [])


def test_the_usage_is_a_mean_over_stretches() -> None:
    samples = [
        Sample(
            time=time / 10,
            queries=0,
            hits=0,
            preemptions=0,
            kv_usage=float(time % 2),
            running=0,
            waiting=0,
        )
        for time in range(1201)
    ]
    times, usage = usage_over_time(samples)
    assert len(times) == 30
    assert times == sorted(times)
    assert usage == pytest.approx([0.5] * 30, abs=0.05)
    assert usage_over_time(samples[:1]) == ([0.0], [0.0])
    assert usage_over_time([]) == ([], [])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    report.write(make_results(), path)
    return path


@pytest.mark.parametrize("screen", SCREENS)
def test_it_opens_in_a_browser(browser: Any, file: Path, screen: str) -> None:
    width, height = SCREENS[screen]
    page = browser.new_page(viewport={"width": width, "height": height})
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri(), wait_until="networkidle")
    assert not complaints
    # Nothing but the file itself, and what it carries.
    assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]
    images = page.evaluate(
        """() => Promise.all([...document.images].map(async image => {
            await image.decode();
            const canvas = document.createElement("canvas");
            const context = canvas.getContext("2d");
            [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
            context.drawImage(image, 0, 0);
            const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
            const colours = new Set();
            for (let i = 0; i < pixels.length; i += 4)
                colours.add(pixels.slice(i, i + 3).join());
            return [image.getBoundingClientRect().width, ["217,130,43", "23,100,171"]
                .filter(colour => colours.has(colour)).length];
        }))"""
    )
    assert len(images) == 6
    for shown, num_colours in images:
        # As wide as the page or a column allows, with both lines drawn.
        assert 300 < shown <= width
        assert num_colours == 2
    # Nothing sticks out to the right, so that no phone scrolls sideways.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=file.with_name(f"{screen}.png"), full_page=True)
    page.close()


def test_it_prints(browser: Any, file: Path) -> None:
    page = browser.new_page()
    page.goto(file.as_uri())
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.close()


def test_the_results_can_be_read_again(tmp_path: Path) -> None:
    results = make_results()
    path = tmp_path / "results.json"
    path.write_text("old")
    results.write(path)
    assert Results.model_validate_json(path.read_text()) == results
    assert [one.name for one in tmp_path.iterdir()] == ["results.json"]

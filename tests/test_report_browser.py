"""The page in a browser: by mouse, by keyboard, in the dark and on a phone."""

import re
import shutil

import numpy as np
import pytest

from kova_rl.lab.report import report
from tests.reports import ENVIRONMENTS, write_runs


@pytest.fixture(scope="module")
def chromium():
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("needs chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        # A container's root has no sandbox, and its /dev/shm is small.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


def brightness(colour):
    return np.mean([int(x) for x in re.findall(r"\d+", colour)])


class TestInABrowser:
    @pytest.fixture
    def opened(self, chromium, small):
        path = report(small)
        contexts = []

        def open_(**options):
            contexts.append(chromium.new_context(**options))
            page = contexts[-1].new_page()
            page.problems = []
            page.on("console", lambda message: page.problems.append(message.text))
            page.on("pageerror", lambda error: page.problems.append(str(error)))
            page.on("requestfailed", lambda request: page.problems.append(request.url))
            page.goto(path.as_uri())
            return page

        yield open_
        for context in contexts:
            context.close()

    def test_loads_without_errors_and_has_every_figure(self, opened):
        page = opened()
        assert page.problems == []
        figures = page.locator("figure").all()
        assert len(figures) == 8
        for figure in figures:
            panels = figure.locator(".panels svg").all()
            assert panels
            for panel in panels:
                box = panel.bounding_box()
                assert box["width"] > 250
                assert box["height"] > 150
                assert panel.locator("path").count() > 5

    def test_the_table_sorts_by_mouse_and_by_keyboard(self, opened):
        page = opened()

        def means():
            return [
                float(cell.get_attribute("data-value"))
                for cell in page.locator("#finals td:nth-child(4)").all()
            ]

        head = page.locator("#finals th:nth-child(4)")
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "descending"
        assert means() == sorted(means(), reverse=True)
        head.locator("button").press("Enter")
        assert head.get_attribute("aria-sort") == "ascending"
        assert means() == sorted(means())
        page.locator("#finals th:nth-child(3) button").click()
        labels = page.locator("#finals td:nth-child(3)").all_inner_texts()
        assert labels == sorted(labels)
        assert head.get_attribute("aria-sort") is None
        assert page.problems == []

    def test_the_table_filters(self, opened):
        page = opened()
        page.get_by_label("Filter").first.fill("hopper ADAM")
        assert page.locator("#finals tbody tr:visible").count() == 1
        assert page.locator("[data-for=finals] output").inner_text() == "1 of 6"
        page.get_by_label("Filter").first.fill("")
        assert page.locator("#finals tbody tr:visible").count() == 6

    def test_is_light_and_dark(self, opened):
        colours = {}
        for scheme in ("light", "dark"):
            page = opened(color_scheme=scheme)
            style = "e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color]"
            colours[scheme] = page.locator("body").evaluate(style)
            ticks = page.locator(".panels svg text").first
            assert ticks.evaluate("e => getComputedStyle(e).fill") == colours[scheme][1]
        (paper, ink), (dark_paper, dark_ink) = (
            map(brightness, colours[scheme]) for scheme in ("light", "dark")
        )
        assert paper > 200 > 60 > ink
        assert dark_ink > 200 > 60 > dark_paper

    @pytest.mark.parametrize("environments", [1, 2, 4])
    def test_few_panels_fill_the_page(self, chromium, tmp_path, environments):
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:environments], ("kova", "adam"), 2)
        write_runs(tmp_path, ("sac",), ENVIRONMENTS[:1], ("kova", "adam"), 1)
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.goto(report(tmp_path).as_uri())
        for section in ("curves", "policy", "improvement", "environments"):
            for row in page.locator(f"#section-{section} .figures").all():
                boxes = [part.bounding_box() for part in row.locator(".panels svg, figcaption").all()]
                right = max(box["x"] + box["width"] for box in boxes)
                assert right > 1000, f"{section} ends at {right} of 1280"
        page.close()

    def test_a_phone_shows_the_probability_and_says_that_tables_scroll(self, opened):
        page = opened(viewport={"width": 400, "height": 800})
        box = page.locator("#improvements tbody td:nth-child(4)").first.bounding_box()
        assert page.locator("#improvements thead th:nth-child(4)").inner_text().startswith("P(better")
        assert box["x"] + box["width"] <= 400
        assert page.locator("[data-for=improvements] .hint").is_visible()
        assert not opened(viewport={"width": 1280, "height": 800}).locator(".hint:visible").count()

    def test_fits_a_phone(self, opened):
        page = opened(viewport={"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.problems == []

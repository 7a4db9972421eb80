"""The report as people meet it: in a browser, on a laptop and a phone, with mouse and keyboard."""

import time

import pytest

import filtergroups as fg
from tests.reporting.browser import OVERLAPS, assert_readable, opened, seen_through
from tests.reporting.runs import SCRIPT

KINDS = [
    "sfg",
    "scans",
    "volumes",
    "maps",
    "eight",
    "one",
    "subsets",
    "constant",
    "stitched",
    "unfinished",
    "lifted",
    "several",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_silent_and_readable_on_laptop_and_phone(browser, pages, kind):
    for width, scheme in ((1280, "light"), (390, "dark")):
        with opened(browser, pages[kind], width, scheme) as page:
            assert_readable(page)


def test_text_over_text_would_be_noticed(browser, pages):
    with opened(browser, pages["sfg"]) as page:
        page.eval_on_selector_all(
            "h2", "(titles) => titles.forEach((title) => { title.style.marginBottom = '-24px'; })"
        )
        assert page.evaluate(OVERLAPS) != []


def set_slider(page, selector, value):
    page.eval_on_selector(
        selector, "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", str(value)
    )


FLOW, SIMPLEX = "[data-figure=flow]", "[data-figure=simplex]"


def test_time_moves_the_flow(browser, pages):
    with opened(browser, pages["sfg"]) as page:
        drawn = f"document.querySelector('{FLOW} svg').innerHTML"
        last = page.evaluate(drawn)
        set_slider(page, f"{FLOW} input", 0)
        assert page.inner_text(f"{FLOW} output") == "step 0"
        assert page.evaluate(drawn) != last
        page.click(f"{FLOW} .choice button[data-value=share]")
        assert page.get_attribute(f"{FLOW} button[data-value=share]", "aria-pressed") == "true"


def test_bands_and_bars_say_their_numbers_under_the_mouse(browser, pages):
    with opened(browser, pages["sfg"]) as page:
        page.locator(f"{FLOW} rect.node").first.hover()
        said = page.inner_text(".tip")
        assert "Layer 1" in said
        assert "kernels" in said
        page.mouse.move(0, 0)
        assert page.locator(".tip").is_hidden()
        page.locator(f"{FLOW} rect.bar").first.hover()
        assert "share of the layer" in page.inner_text(".tip")


def test_the_keyboard_reaches_every_group(browser, pages):
    with opened(browser, pages["sfg"]) as page:
        page.focus(f"{FLOW} .choice button:last-child")
        page.keyboard.press("Tab")
        first = page.inner_text(".tip")
        page.keyboard.press("Tab")
        assert "Layer 1" in first
        assert page.inner_text(".tip") != first
        page.focus(f"{SIMPLEX} canvas")
        page.keyboard.press("ArrowRight")
        assert "kernel 0" in page.inner_text(".tip")


def canvas(page, selector):
    return page.eval_on_selector(selector, "(canvas) => canvas.toDataURL()")


@pytest.mark.parametrize(("kind", "figure"), [("sfg", "simplex"), ("eight", "heat"), ("subsets", "heat")])
def test_time_moves_the_probabilities(browser, pages, kind, figure):
    with opened(browser, pages[kind]) as page:
        selector = f"[data-figure={figure}] canvas"
        page.locator(selector).first.scroll_into_view_if_needed()
        page.wait_for_timeout(100)
        last = canvas(page, selector)
        set_slider(page, f"[data-figure={figure}] input", 0)
        assert canvas(page, selector) != last
        page.locator(selector).first.hover()
        assert "kernel" in page.inner_text(".tip")


def test_curves_say_their_values(browser, pages):
    with opened(browser, pages["sfg"]) as page:
        page.locator("[data-figure=curves] .card").first.scroll_into_view_if_needed()
        page.locator("[data-figure=curves] svg").first.hover()
        assert "step" in page.inner_text(".tip")


def test_a_slider_goes_through_the_slices(browser, pages):
    with opened(browser, pages["scans"]) as page:
        place = "getComputedStyle(document.querySelector('.slice')).backgroundPositionY"
        before = page.evaluate(place)
        set_slider(page, "[data-slices] input", 0)
        assert page.inner_text("[data-slices] output") == "slice 1"
        assert page.evaluate(place) != before
        titles = page.locator(".slices figcaption").all_inner_texts()
        for wanted in ("input", "ct: target", "ct: synthesised", "ct: absolute error", "ct: uncertainty",
                       "organs: labels", "organs: predicted", "organs: uncertainty"):  # fmt: skip
            assert any(title.startswith(wanted) for title in titles), wanted


def test_another_input_shows_other_activations(browser, pages):
    with opened(browser, pages["sfg"]) as page:
        shown = "[...document.querySelectorAll('.maps')].find((maps) => !maps.hidden).querySelector('img').src"
        before = page.evaluate(shown)
        page.locator("fieldset.inputs label").nth(1).click()
        assert page.evaluate(shown) != before


def test_all_that_is_mixed_is_seen_at_once(browser, tmp_path):
    """Names of two words are no reason to scroll; and a fact that is alone in its row has no grey beside it."""
    tasks = [fg.Regression(name) for name in ("length of foot", "price (euro)", "n")]
    for method in ("cross_stitch", "sfg"):
        path = fg.report(fg.vgg11(tasks, width=0.125, method=method), tmp_path / f"{method}.html")
        with opened(browser, path, 1100) as page:
            hidden = "[...document.querySelectorAll('.mixing .scroll')].map(box => box.scrollWidth - box.clientWidth)"
            assert page.evaluate(hidden) == [0] * (8 if method == "cross_stitch" else 0)
            colours = "['.facts', '.card'].map(name => getComputedStyle(document.querySelector(name)).backgroundColor)"
            facts, card = page.evaluate(colours)
            assert facts == card


def test_one_of_several_runs_is_shown(browser, pages):
    with opened(browser, pages["several"]) as page:
        assert page.locator("article.run:visible").count() == 1
        page.select_option("#choose-run", "r2")
        assert page.locator("article.run:visible").get_attribute("id") == "r2"
        assert page.locator("#r2-architecture").is_visible()
        seen_through(page)


def test_what_comes_from_data_is_text(browser, pages, unpleasant):
    """Names of tasks, classes and folders that would be HTML: they appear as they are, and nothing runs."""
    with opened(browser, pages["eight"]) as page:
        seen_through(page)
        text = page.inner_text("body")
        assert SCRIPT in text
        assert "<b>bold<b>" in text
        assert "&amp;" in text
        assert unpleasant.name in text
        assert page.locator("main b, main i:not(.scale i)").count() == 0
        assert page.evaluate("document.querySelectorAll('script:not([type])').length") == 5


def test_a_page_without_script_still_shows_results_and_pictures(browser, pages):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(pages["sfg"].as_uri())
    assert page.locator("#r0-summary table").first.is_visible()
    assert page.locator("#r0-predictions img").first.is_visible()
    page.context.close()


MOVED_FIVE_TIMES = """(input, value) => [1, 2, 3, 4, 5].map(() => {
  const began = performance.now();
  input.value = value;
  input.dispatchEvent(new Event("input"));
  return performance.now() - began;
})"""


def test_a_large_run_is_drawn_in_time_and_answers_at_once(browser, large, tmp_path):
    """20 layers, 5,000 kernels, 500 saved steps."""
    began = time.perf_counter()
    page_file = fg.report(large, tmp_path / "large.html")
    with opened(browser, page_file) as page:
        page.locator(f"{SIMPLEX} canvas").first.scroll_into_view_if_needed()
        page.wait_for_timeout(50)
        assert time.perf_counter() - began < 20
        assert page_file.stat().st_size < 15e6
        for figure in (FLOW, SIMPLEX):
            page.locator(figure).scroll_into_view_if_needed()
            page.wait_for_timeout(100)
            for value in (0, 60, 119):
                # The other tests run beside this one: of five moves the fastest is what the page itself takes.
                assert min(page.eval_on_selector(f"{figure} input", MOVED_FIVE_TIMES, value)) < 100
        assert_readable(page)

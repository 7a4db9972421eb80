"""A page in a real browser, and what may not happen there."""

from contextlib import contextmanager

# Text that is drawn over other text, as pairs; what scrolls away or floats above the page by design does not count.
OVERLAPS = """() => {
  const rects = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    const apart = parent.closest("nav.top, .tip, script, style, .skip");
    if (!node.textContent.trim() || apart || !parent.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      let [left, top, right, bottom] = [rect.left + 1, rect.top + 2, rect.right - 1, rect.bottom - 2];
      for (let box = parent; box && box !== document.body; box = box.parentElement) {
        if (getComputedStyle(box).overflowX === "visible") continue;
        const clip = box.getBoundingClientRect();
        [left, top] = [Math.max(left, clip.left), Math.max(top, clip.top)];
        [right, bottom] = [Math.min(right, clip.right), Math.min(bottom, clip.bottom)];
      }
      const text = node.textContent.trim().slice(0, 40);
      if (right - left > 1 && bottom - top > 1) rects.push({ left, top, right, bottom, node, text });
    }
  }
  rects.sort((a, b) => a.top - b.top);
  const found = [];
  for (let i = 0; i < rects.length; i++) for (let j = i + 1; j < rects.length && rects[j].top < rects[i].bottom; j++) {
    const [a, b] = [rects[i], rects[j]];
    if (a.node !== b.node && a.left < b.right && b.left < a.right && a.top < b.bottom) found.push([a.text, b.text]);
  }
  return found;
}"""


@contextmanager
def opened(browser, path, width=1280, scheme="light"):
    """A page of the file; at the end it must have been silent and asked nobody for anything."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    problems = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append("a dialog"), dialog.dismiss()))
    page.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else problems.append(request.url)
    )
    page.goto(path.as_uri())
    page.wait_for_timeout(100)
    try:
        yield page
        assert problems == []
    finally:
        page.close()


def seen_through(page):
    """Scroll from top to bottom, so that everything is drawn."""
    height = page.evaluate("document.documentElement.scrollHeight")
    for y in range(0, height, 800):
        page.evaluate(f"scrollTo(0, {y})")
        page.wait_for_timeout(20)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(20)


def assert_readable(page):
    """Nothing wider than the screen, no text over other text, every picture described."""
    seen_through(page)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate("[...document.querySelectorAll('img')].filter((image) => !image.alt).length") == 0
    assert (
        page.evaluate("[...document.querySelectorAll('canvas, svg[role=img]')].filter((one) => !one.ariaLabel).length")
        == 0
    )

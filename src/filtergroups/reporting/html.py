"""HTML that is escaped by construction: text is text, unless it is `Html`."""

import json
from html import escape
from typing import Any


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


VOID = {"img", "input", "br", "meta", "col"}


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element. None children and attributes are left out; `class_` and `data_x` mean class and data-x."""
    shown = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        shown.append(f" {key}" if value is True else f' {key}="{escape(str(value))}"')
    opening = f"<{name}{''.join(shown)}>"
    return Html(opening if name in VOID else f"{opening}{joined(*children)}</{name}>")


def joined(*children: Any) -> Html:
    """Elements and texts one after the other; lists are flattened."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, list | tuple):
            parts.append(joined(*child))
        else:
            parts.append(child if isinstance(child, Html) else escape(str(child)))
    return Html("".join(parts))


def json_script(data: Any, **attributes: Any) -> Html:
    """Data for the page's script. Inside a script element nothing is escaped but what would end it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Html(text), type="application/json", **attributes)


def table(head: list[Any], rows: list[list[Any]], *, class_: str | None = None, caption: str | None = None) -> Html:
    """A table whose first column names its rows, in a box that scrolls where it is too wide."""
    made = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head))),
        tag(
            "tbody",
            *(tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows),
        ),
        class_=class_,
        aria_label=caption,
    )
    scrolling = tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption or "table")
    # Above the table and not inside it: a caption would be as narrow as its table, and scroll away with it.
    return joined(tag("p", caption, class_="caption") if caption else None, scrolling)


def note(*children: Any) -> Html:
    """A line of explanation."""
    return tag("p", *children, class_="note")


def section(key: str, title: str, *children: Any) -> Html:
    return tag("section", tag("h2", title, id=f"{key}-title"), *children, id=key, aria_labelledby=f"{key}-title")

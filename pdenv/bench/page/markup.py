"""HTML from small pieces. A plain string is text and gets escaped; only `Html` goes in as it is."""

from __future__ import annotations

from html import escape

VOID = frozenset({"br", "col", "meta"})  # elements that have no end tag


class Html(str):
    """Finished markup."""

    __slots__ = ()


def element(tag: str, *content: str, **attributes: str | float | bool | None) -> Html:
    """An element with its content and attributes.

    Attributes that are None or False are left out, True stands alone. `class_` and `for_` give `class` and `for`,
    other underscores become hyphens.
    """
    named = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items())
    given = [
        f" {name}" if value is True else f' {name}="{escape(str(value))}"'
        for name, value in named
        if value is not None and value is not False
    ]
    opening = f"<{tag}{''.join(given)}>"
    return Html(opening) if tag in VOID else Html(f"{opening}{join(*content)}</{tag}>")


def join(*content: str) -> Html:
    """Pieces side by side, text escaped."""
    return Html("".join(piece if isinstance(piece, Html) else escape(piece, quote=False) for piece in content))


def listing(lines: list[str], **attributes: str | None) -> Html:
    """A bullet list."""
    return element("ul", *(element("li", line) for line in lines), **attributes)


def table(head: list[Html], rows: list[Html], caption: str, **attributes: str | None) -> Html:
    """A table that scrolls inside itself where the page is narrow; head cells and rows are finished elements."""
    body = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        **attributes,
    )
    return element("div", body, class_="scroll", tabindex="0", role="region", aria_label=caption)

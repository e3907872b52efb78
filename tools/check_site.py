"""Fails when the built documentation would fetch anything from the network.

`python tools/check_site.py site` after `mkdocs build`. Links that a reader may follow are fine; scripts, style sheets,
images and fonts that a page loads by itself are not.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path

LOADED_LINKS = {"stylesheet", "preload", "modulepreload", "preconnect", "dns-prefetch", "icon", "manifest"}


class Loads(HTMLParser):
    """Collects the addresses that a page loads without being asked."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "src" in values:
            self.addresses.append(values["src"])
        if tag == "link" and LOADED_LINKS & set(values.get("rel", "").lower().split()):
            self.addresses.append(values.get("href", ""))


def foreign(html: str) -> list[str]:
    """Addresses in `html` that lead off the site.

    >>> foreign('<script src="https://example.org/a.js"></script><img src="a.png"><a href="https://example.org">b</a>')
    ['https://example.org/a.js']
    """
    page = Loads()
    page.feed(html)
    return [address for address in page.addresses if address.startswith(("http:", "https:", "//"))]


def main(site: Path) -> int:
    """Print the verdict on the pages below `site`; 0 when they load nothing from elsewhere."""
    pages = sorted(site.rglob("*.html"))
    if not pages:
        print(f"check_site: no page below {site}; build it first with mkdocs", file=sys.stderr)
        return 1
    found = [(page, address) for page in pages for address in foreign(page.read_text(encoding="utf-8"))]
    for page, address in found:
        print(f"{page}: loads {address}; ship a copy or leave it out", file=sys.stderr)
    if not found:
        print(f"{len(pages)} pages in {site}; open {site / 'index.html'}; nothing is loaded from the network")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "site")))

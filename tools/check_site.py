"""Fails when the built documentation would fetch from the network, has a dead link, or lacks the code it includes.

`python tools/check_site.py site` after `mkdocs build`. Links that a reader may follow off the site are fine; scripts,
style sheets, images and fonts that a page loads by itself are not. Links to pages of the site, and to places in them,
are followed: also those to lines of source files, which mkdocs does not look at. A mark that should have become code
must not be left in any page, and every page of the rules must show the code of a rule.
"""

from __future__ import annotations

import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

MOST_SHOWN = 20
MARK = re.compile(r"-{1,}\s*8\s*<\s*-{2,}")  # as it is written, and as a formatter of Python has spread it
RULE_PAGES, RULE_CODE = "rules", "def forward"
SOURCES = "code"  # pages that are source files as they are, tests of these marks among them
LOADED_LINKS = {"stylesheet", "preload", "modulepreload", "preconnect", "dns-prefetch", "icon", "manifest"}


class Loads(HTMLParser):
    """Collects the addresses that a page loads without being asked, its links, and its places."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if "src" in values:
            self.addresses.append(values["src"])
        if tag == "link" and LOADED_LINKS & set(values.get("rel", "").lower().split()):
            self.addresses.append(values.get("href", ""))

    def handle_data(self, data: str) -> None:
        self.text += data


def foreign(html: str) -> list[str]:
    """Addresses in `html` that lead off the site.

    >>> foreign('<script src="https://example.org/a.js"></script><img src="a.png"><a href="https://example.org">b</a>')
    ['https://example.org/a.js']
    """
    return [address for address in read(html).addresses if address.startswith(("http:", "https:", "//"))]


def read(html: str) -> Loads:
    page = Loads()
    page.feed(html)
    return page


def dead(pages: dict[Path, Loads]) -> list[tuple[Path, str]]:
    """(page, link) of every link that leads to no file beside the pages, or to no place in one of them.

    >>> dead({Path("a.html"): read('<a href="#b">b</a> <i id="c"></i> <a href="#c">c</a>')})  # doctest: +ELLIPSIS
    [(...Path('a.html'), '#b')]
    """
    found = []
    for path, page in pages.items():
        for link in page.links:
            address, _, place = unquote(link).partition("#")
            if ":" in address or address.startswith("//"):
                continue
            target = Path(os.path.normpath(path.parent / address)) if address else path
            if target.is_dir():
                target /= "index.html"
            gone = target not in pages and not target.is_file()
            if gone or (place and target in pages and place not in pages[target].places):
                found.append((path, link))
    return found


def without_code(pages: dict[Path, Loads]) -> list[tuple[Path, str]]:
    """(page, what is wrong) of every page, by its path in the site, that should show code from a file and does not.

    >>> text = '<pre>--8 &lt; --"a.py"</pre><i>def</i> <i>forward</i>(a)'
    >>> without_code({Path("rules/a.html"): read(text)})  # doctest: +ELLIPSIS
    [(...Path('rules/a.html'), 'the mark --8 < -- stands where code should have been included')]
    >>> without_code({Path("rules/a.html"): read("x"), Path("b.html"): read("x")})  # doctest: +ELLIPSIS
    [(...Path('rules/a.html'), 'a page of the rules that shows no `def forward`')]
    """
    found = []
    for path, page in pages.items():
        if path.parts[0] != SOURCES and (mark := MARK.search(page.text)):
            found.append((path, f"the mark {mark[0]} stands where code should have been included"))
        if path.parts[0] == RULE_PAGES and RULE_CODE not in page.text:
            found.append((path, f"a page of the rules that shows no `{RULE_CODE}`"))
    return found


def main(site: Path) -> int:
    """Print the verdict on the pages below `site`; 0 when nothing is wrong."""
    pages = sorted(site.rglob("*.html"))
    if not pages:
        print(f"check_site: no page below {site}; build it first with mkdocs", file=sys.stderr)
        return 1
    found = [(page, address) for page in pages for address in foreign(page.read_text(encoding="utf-8"))]
    for page, address in found:
        print(f"{page}: loads {address}; ship a copy or leave it out", file=sys.stderr)
    known = {page: read(page.read_text(encoding="utf-8")) for page in pages if page.name != "404.html"}
    lost, empty = dead(known), without_code({page.relative_to(site): known[page] for page in known})
    for page, what in empty:
        print(f"{page}: {what}", file=sys.stderr)
    for page, link in lost[:MOST_SHOWN]:
        print(f"{page}: the link {link} leads nowhere", file=sys.stderr)
    if len(lost) > MOST_SHOWN:
        print(f"and {len(lost) - MOST_SHOWN} more dead links", file=sys.stderr)
    if found or lost or empty:
        return 1
    print(
        f"{len(pages)} pages in {site}; open {site / 'index.html'}; nothing is loaded from the network; no dead link; "
        "all included code is there"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "site")))

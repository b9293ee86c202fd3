"""Pages of HTML in tests: their elements, and what a script finds of them in a headless Chromium."""

import shutil
import subprocess
from html.parser import HTMLParser

from qsa.parity.readable.document import Document, Map, Row, Table

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "link", "input", "br", "wbr"}


class Page(HTMLParser):
    """The elements of a page: (tag, attributes, text); every tag must be closed in its order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        element = [tag, dict(attributes), ""]
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def all(self, tag, **attributes):
        return [e for e in self.elements if e[0] == tag and attributes.items() <= e[1].items()]


def example():
    """A document of another command: a map of errors, a picture, a sortable table."""
    errors = Map("error of attend", ("row", "head"), ((1e-7, 3e-6, None), (2e-3, float("inf"), 0.9e-6)), 1e-6)
    shares = Map("explained", ("split", "block"), ((0.01, 0.3, 1.0, *[0.0] * 120),), None)
    rows = [Row(("failed", "m", "case:a=1,b=2", "2"), "failed", "why", "copy me", (errors, shares))]
    rows += [Row(("passed", "m", f"case:n={n}", str(n)), "passed", "", f"copy {n}") for n in range(10, 0, -1)]
    table = Table("Cases", ("status", "module", "case", "seconds"), tuple(rows), frozenset({"seconds"}))
    picture = "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><title>plot</title></svg>"
    return Document("qsa bench", "slower", False, ("1 slower",), (table,), {}, {"Time": picture})


def browsed(page, probe, size, folder):
    """What ``probe`` says in a browser of ``page``, a line each; the console must say nothing."""
    (folder / "page.html").write_text(page.replace("</body>", f"{probe}</body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
    options += ["--enable-logging=stderr", "--v=0", "--virtual-time-budget=4000", f"--window-size={size}", "--dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *options, f"file://{folder}/page.html"], capture_output=True, text=True, timeout=120
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    (said,) = [element[2] for element in Page(done.stdout).all("pre", id="said")]
    return said.splitlines()

"""README and ``docs/`` fit this checkout: the files, modules and make targets that they name exist, lines are short,
and the line counts of the reading paths are near those of the files.
"""

import ast
import builtins
import importlib
import re

import pytest

from qsa.parity.evidence.process import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="not a checkout of the repository")

PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md")))
CITING = (*PAGES, "CONTRIBUTING.md", "golden/model/README.md")
"""Pages whose paths and links are checked."""

README_LINES = 100
LINE = 120
TOLERANCE = 0.2
"""Share by which a line count of a reading path may differ from the file."""

READING_PATHS = {"Exact attention on the CPU": 12, "Exact attention on CUDA": 12, "One parity case": 8}
"""Heading in ``docs/architecture.md`` -> files at most."""

_FOLDERS = r"(?:reference|kernels|model|engine|golden|parity|tests|docs|\.ci)"
_PATH = re.compile(rf"(?<![\w/.-])({_FOLDERS}/[\w./-]*)")
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
_NAMED = re.compile(r"`([\w.-]+\.(?:py|md))`")
_MODULE = re.compile(r"python -m qsa\.([\w.]+)")
_TARGET = re.compile(r"^`?make ([a-z]+)\b", re.M)
_COUNT = re.compile(r"^\| `([^`]+)` \| (\d+) \|", re.M)

FOREIGN = {"mykernel.py", "textwrap.py", "__init__.py"}
"""File names that are no single file here: the reader's own kernel, a module of Python, every package's."""


def read(page):
    """The text of a page, given relative to the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def missing_paths(page, text):
    """Paths, links and file names in ``text`` that lead to no file or folder."""
    beside = (ROOT / page).parent
    paths = [path for path in _PATH.findall(text) if "NAME" not in path]  # NAME stands for any file
    missing = [path for path in paths if not (ROOT / path.rstrip(".")).exists()]
    links = [link for link in _LINK.findall(text) if "://" not in link]
    missing += [link for link in links if not (beside / link).exists()]
    names = [name for name in _NAMED.findall(text) if name not in FOREIGN]
    return missing + [name for name in names if not (beside / name).exists() and not (ROOT / name).exists()]


def missing_commands(text):
    """Modules, or packages that run, after ``python -m`` and targets after ``make`` in ``text`` that do not exist."""
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.M))
    paths = {name: name.replace(".", "/") for name in _MODULE.findall(text)}
    files = {name: (ROOT / f"{path}.py", ROOT / path / "__main__.py") for name, path in paths.items()}
    modules = [name for name, either in files.items() if not any(file.is_file() for file in either)]
    code = "\n".join(re.findall(r"```\n.*?```|`[^`\n]+`", text, re.S))  # blocks, and spans inside a line
    return modules + [name for name in _TARGET.findall(code) if name not in targets]


def undefined_names(text):
    """Names in the Python examples of ``text`` that are neither defined there nor to be had where they are imported
    from."""
    missing = []
    for example in re.findall(r"```python\n(.*?)```", text, re.S):
        nodes = list(ast.walk(ast.parse(example)))
        defined = {node.arg for node in nodes if isinstance(node, ast.arg)} | set([*dir(builtins), "__file__"])
        defined |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for node in nodes:
            if isinstance(node, ast.Import):
                defined |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module)
                defined |= {alias.name for alias in node.names if hasattr(module, alias.name)}
                missing += [alias.name for alias in node.names if not hasattr(module, alias.name)]
        loaded = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        missing += [name for name in loaded if name not in defined]
    return missing


def long_lines(text):
    """Numbers of the lines of ``text`` with more than 120 characters."""
    return [number for number, line in enumerate(text.splitlines(), 1) if len(line) > LINE]


def wrong_counts(text):
    """(path, count in ``text``, lines of the file) where the two differ by more than the tolerance."""
    counts = [(path, int(count), len(read(path).splitlines())) for path, count in _COUNT.findall(text)]
    return [(path, count, lines) for path, count, lines in counts if abs(count - lines) > TOLERANCE * lines]


@pytest.mark.parametrize("page", CITING)
def test_paths_and_links_lead_to_files(page):
    assert missing_paths(page, read(page)) == []


@pytest.mark.parametrize("page", CITING)
def test_modules_and_make_targets_exist(page):
    assert missing_commands(read(page)) == []


@pytest.mark.parametrize("page", CITING)
def test_python_examples_have_no_undefined_names(page):
    assert undefined_names(read(page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_short(page):
    assert long_lines(read(page)) == []


def test_the_readme_is_short():
    assert len(read("README.md").splitlines()) <= README_LINES


@pytest.mark.parametrize(("heading", "most"), READING_PATHS.items())
def test_reading_paths_are_short_and_count_the_lines_of_their_files(heading, most):
    section = read("docs/architecture.md").split(f"### {heading}\n")[1].split("\n#")[0]
    assert 1 < len(_COUNT.findall(section)) <= most
    assert wrong_counts(section) == []


def test_what_is_wrong_is_found():
    text = "`engine/gone.py`, (kernels/cpu/) and [a page](docs/gone.md), [another](docs/design.md#section), `gone.py`"
    assert missing_paths("README.md", text) == ["engine/gone.py", "docs/gone.md", "docs/gone.md", "gone.py"]
    assert missing_commands("`make parity`\n```\nmake tea  # make sure\npython -m qsa.parity.gone\n```\n") == [
        "parity.gone",
        "tea",
    ]
    example = "```python\nfrom qsa.engine import Engine, Gone\nids = len(Engine)\nprint(ids, other)\n```"
    assert undefined_names(example) == ["Gone", "other"]
    assert long_lines("x" * 120 + "\n" + "x" * 121) == [2]
    lines = len(read("parity/cli.py").splitlines())
    assert wrong_counts(f"| `parity/cli.py` | {lines} |") == []
    assert wrong_counts(f"| `parity/cli.py` | {2 * lines} |") == [("parity/cli.py", 2 * lines, lines)]

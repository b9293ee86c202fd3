"""The wheel holds every package and the goldens, and works without the repository."""

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from qsa.golden.training import corpus

ROOT = Path(__file__).parents[3]
PSF = "golden/model/LICENSE.PSF-2.0.txt"
SCRIPT = """
import sys
sys.path[:0] = [{target!r}, {site!r}]
import qsa.reference, qsa.reference.exact, qsa.kernels.cpu, qsa.golden.store, qsa.parity.cli
assert all(m.__file__.startswith({target!r}) for n, m in sys.modules.items() if n.startswith("qsa."))
sys.exit(qsa.parity.cli.main(["golden", "check", {golden!r}]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, what the build printed)."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (made,) = folder.glob("*.whl")
    return made, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(built):
    return built[0]


def test_the_build_warns_of_nothing(built):
    """Known-faults-2 N7: 80 lines "Package would be ignored" in a newcomer's first minute."""
    printed = built[1]
    assert "running bdist_wheel" in printed
    assert "would be ignored" not in printed and "Warning" not in printed


def test_wheel_holds_every_package_and_golden(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("reference", "kernels", "model", "engine", "golden", "parity"):
        sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*.py")}
        assert {f"qsa/{name}" for name in sources} <= names
        assert f"qsa/{folder}/py.typed" in names
    records = {p.relative_to(ROOT).as_posix() for p in (ROOT / "golden/records").glob("*.json")}
    # What reports in HTML are made of.
    assert {f"qsa/parity/readable/{name}" for name in ("page.html", "style.css", "script.js")} <= names
    assert records and {f"qsa/{r}" for r in records if not r.endswith(".pending.json")} <= names
    assert "qsa/parity/ports/c_kernel.c" in names
    assert not any(name.startswith(("tests/", "reference/")) for name in names)


def test_a_source_distribution_is_the_whole_project(tmp_path):
    """Known-faults-2 N12: tests, docs and the Makefile were left out."""
    tree = tmp_path / "tree"
    folders = (".ci", ".github", "docs", "tests", "reference", "kernels", "model", "engine", "golden", "parity")
    for folder in folders:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, tree)
    program = f"from setuptools import build_meta; print(build_meta.build_sdist({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tree, check=True, capture_output=True, text=True)
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
        info = next(
            member for member in files.getmembers() if member.name.count("/") == 1 and "PKG-INFO" in member.name
        )
        metadata = email.message_from_bytes(files.extractfile(info).read())
    expected = {path.relative_to(tree).as_posix() for folder in folders for path in (tree / folder).rglob("*")}
    expected = {name for name in expected if (tree / name).is_file() and not name.endswith(".pending.json")}
    assert expected - names == set()
    assert {"Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml"} <= names
    assert len(metadata.get_all("Classifier")) > 5 and metadata["Requires-Python"] == ">=3.11"


def test_wheel_says_whose_texts_it_ships_and_under_which_licence(wheel):
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        (info,) = (name.removesuffix("METADATA") for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(files.read(f"{info}METADATA"))
        assert metadata["License-Expression"] == "Apache-2.0 AND PSF-2.0"
        assert set(metadata.get_all("License-File")) == {"LICENSE", PSF}
        licence = files.read(f"{info}licenses/{PSF}")
        assert licence == files.read(f"qsa/{PSF}") == (ROOT / PSF).read_bytes()
    assert b"PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in licence
    assert all(f"\n{paragraph}. ".encode() in licence for paragraph in range(1, 9))
    assert b"Python Software Foundation;\nAll Rights Reserved" in licence and b"BEOPEN" not in licence
    # The card has a line for every text of others that is shipped, and the licence of every source.
    card = (ROOT / "golden/model/README.md").read_text(encoding="utf-8")
    lines = card.partition("## Licences")[2].partition("## ")[0].splitlines()
    for text in ("heldout-code.txt", "heldout-text.txt"):
        assert f"qsa/golden/model/{text}" in names
        assert any(line.startswith(f"| `{text}`") and line.endswith("| PSF-2.0 |") for line in lines)
    named = " ".join(lines)
    assert all(licence in named for _, licence, *_ in corpus.SOURCES.values())


def test_wheel_runs_without_the_repository(wheel, tmp_path):
    """-S leaves out the editable install's path hook, so that only the unpacked wheel can be imported."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    golden = min(p.stem for p in (ROOT / "golden/records").glob("*.json"))
    script = SCRIPT.format(target=str(tmp_path), site=sysconfig.get_paths()["purelib"], golden=golden)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"QSA_CACHE": str(tmp_path / "cache")}
    run = subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr

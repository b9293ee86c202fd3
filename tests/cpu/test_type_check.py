"""``make lint`` runs mypy over the packages themselves, not over an import hook that it does not see."""

import shutil
import subprocess

import pytest

from support import type_check

PLANTED = """
from qsa.kernels import Sampler, cpu
from qsa.reference.formats import rotate

rotate("three")
SAMPLER: Sampler = cpu
"""


def test_a_type_error_between_packages_is_reported(tmp_path):
    pytest.importorskip("mypy")
    folder = type_check.link_packages(tmp_path / "typing")
    (folder / "qsa" / "planted.py").write_text(PLANTED)
    result = type_check.run_mypy(folder, tmp_path / "cache")
    assert result.status == 1 and result.files > type_check.FEWEST_FILES
    lines = [line for line in result.text.splitlines() if "error:" in line]
    assert [line.split(":")[:2] for line in lines] == [["planted.py", "5"], ["planted.py", "6"]], result.text
    assert "[arg-type]" in lines[0] and "[assignment]" in lines[1]


def test_lint_fails_when_mypy_sees_no_package(tmp_path, monkeypatch, capsys):
    """As in a checkout whose packages are known to an import hook alone."""
    pytest.importorskip("mypy")
    (tmp_path / "qsa").mkdir()
    (tmp_path / "qsa" / "__init__.pyi").touch()
    monkeypatch.setattr(type_check, "link_packages", lambda folder: tmp_path)
    monkeypatch.setattr(type_check, "TYPED_TESTS", ())
    assert type_check.main() == 1
    assert "mypy read 1 source files: more than 150 are required" in capsys.readouterr().err


def test_links_are_made_anew_and_what_stands_there_stays(tmp_path):
    package, other = tmp_path / "qsa", tmp_path / "another"
    package.mkdir()
    other.mkdir()
    (package / "model").symlink_to(tmp_path / "gone")
    (package / "parity").symlink_to(other)
    (package / "engine").mkdir()
    type_check.link_packages(tmp_path)
    assert all((package / name).resolve() == type_check.ROOT / name for name in ("model", "parity"))
    assert list((package / "engine").iterdir()) == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is missing")
@pytest.mark.parametrize("target", ["lint", "test"])
def test_make_runs_the_type_check(target):
    run = subprocess.run(
        ["make", "-n", target], cwd=type_check.ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    lines = [line for line in run.stdout.splitlines() if "tests/support/type_check.py" in line]
    assert len(lines) == 1 and "ruff check" in lines[0] and "ruff format --check" in lines[0]

"""The wheel holds every package and the goldens, and works without the repository."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
sys.path[:0] = [{target!r}, {site!r}]
import qsa.reference, qsa.reference.exact, qsa.kernels.cpu, qsa.golden.store, qsa.parity.cli
assert all(m.__file__.startswith({target!r}) for n, m in sys.modules.items() if n.startswith("qsa."))
sys.exit(qsa.parity.cli.main(["golden", "check", {golden!r}]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (made,) = folder.glob("*.whl")
    return made


def test_wheel_holds_every_package_and_golden(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("reference", "kernels", "engine", "golden", "parity"):
        sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*.py")}
        assert {f"qsa/{name}" for name in sources} <= names
    records = {p.relative_to(ROOT).as_posix() for p in (ROOT / "golden/records").glob("*.json")}
    assert records and {f"qsa/{r}" for r in records if not r.endswith(".pending.json")} <= names
    assert not any(name.startswith(("tests/", "reference/")) for name in names)


def test_wheel_runs_without_the_repository(wheel, tmp_path):
    """-S leaves out the editable install's path hook, so that only the unpacked wheel can be imported."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    golden = min(p.stem for p in (ROOT / "golden/records").glob("*.json"))
    script = SCRIPT.format(target=str(tmp_path), site=sysconfig.get_paths()["purelib"], golden=golden)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr

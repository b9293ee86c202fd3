"""What ``qsa bench`` reports: cases, floors, exponents, JSON, HTML, Markdown, the comparison of two reports."""

import json
import re
from types import SimpleNamespace

import jsonschema
import msgspec
import pytest

from qsa.kernels.sources import root
from qsa.parity import schema
from qsa.parity.readable import html, markdown
from qsa.parity.screen import cases, changes, document, exponents, plots, run
from qsa.parity.screen.limits import cpu, floors, nvml
from qsa.parity.screen.results import Against, Bench, Contestant, Limits, Rate, State, Timing

RATES = (Rate(1 << 16, 200.0, 90.0), Rate(1 << 22, 60.0, 80.0), Rate(1 << 28, 10.0, 12.0))
LIMITS = Limits("a machine", 1 << 22, RATES, 0.5, 0.02, 1e12, "the test")


def timing(case, us, contestant="cpu", **more):
    floor = floors.floor(LIMITS, 40_000, 1_000_000, "hot")
    status = more.pop("status", "timed")
    figures = {"us": us, "p10_us": us, "p90_us": us, "samples": (us,), "share": floor.us / us} if us else {}
    given = {"case": case.text, "operation": case.operation, "parameters": case.parameters, "floor": floor}
    return Timing(**given, contestant=contestant, status=status, contract="made up", **figures, **more)


def made(factor=1.0, **more):
    """A report of two contestants over four contexts and three rows."""
    found = []
    for context in (1024, 4096, 16384, 65536):
        case = cases.make("block_scores", rows=1, context=context)
        found.append(timing(case, factor * context / 64, state=State(clock_mhz=2000.0, load=1.5)))
        found.append(timing(case, context / 32, "mine", against=Against(0.5, 0.001, "FASTER")))
    for rows in (1, 2, 4):
        found.append(timing(cases.make("append_index", rows=rows), 9.0 * rows**0.5))
    found.append(timing(cases.make("select", rows=1), None, "mine", status="wrong", reason="ids <b> differ"))
    names = tuple(Contestant(name, f"{name}.py", "exact", "0") for name in ("cpu", "mine"))
    given = {"environment": {"cpu": "A <fast> one", "commit": "0" * 40}, "limits": (LIMITS,), "start": (State(),)}
    return Bench(**given, contestants=names, timings=tuple(found), exponents=tuple(exponents.of(found)), **more)


def test_a_case_string_reads_back():
    for case in [*cases.chosen(cases.Wanted(), "cpu"), *cases.chosen(cases.Wanted(), "other", own_storage=True)]:
        assert cases.parse(case.text) == case


def test_the_screen_has_curves_and_options_have_products():
    screen = cases.chosen(cases.Wanted(), "cpu")
    assert len({case.text for case in screen}) == len(screen) == 40
    attend = [case for case in screen if case.operation == "attend"]
    assert {case.get("context") for case in attend if case.get("rows") == 1} == set(cases.CONTEXTS)
    assert {case.get("rows") for case in attend} == set(cases.ROWS)
    assert {case.get("schedule") for case in attend} == {"standing", "split"}
    wanted = cases.Wanted(("attend", "select"), rows=(1, 2), contexts=(64, 128), schedules=("split", "standing"))
    product = cases.chosen(wanted, "cpu")
    assert len(product) == 2 * 2 * 2 + 2 * 2 and all(case.get("format") in ("int8", None) for case in product)
    own = cases.chosen(cases.Wanted(("attend",)), "mine.py", own_storage=True)
    assert {case.get("format") for case in own} == {"own"}
    assert len(cases.chosen(cases.Wanted(("attend",), caches=("hot", "cold")), "x")) == 2 * len(
        cases.chosen(cases.Wanted(("attend",)), "x")
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"operations": ("attnd",)}, ["--op = 'attnd'", "attend, block_scores"]),
        ({"formats": ("int7",)}, ["--format = 'int7'", "int8"]),
        ({"schedules": ("fast",)}, ["--schedule = 'fast'", "standing"]),
        ({"caches": ("warm",)}, ["--cache = 'warm'", "hot, cold"]),
        ({"rows": (100_000,)}, ["--rows = 100000", "from 1 to 4096"]),
        ({"contexts": (1 << 30,)}, ["--context", "from 1 to 4194304"]),
        ({"rows": (64,), "contexts": (32,)}, ["--rows = 64", "32 cells"]),
        ({"operations": ("select",), "formats": ("int8",)}, ["--format", "select has no format"]),
        ({"operations": ("select",), "schedules": ("batch",)}, ["--schedule = 'batch'", "select has none"]),
    ],
)
def test_what_may_not_be_asked_for_is_named(given, words):
    with pytest.raises(ValueError) as error:
        cases.chosen(cases.Wanted(**given), "cpu")
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["0", "-1", "64k1", "1G", "", "1.5K", "ten"])
def test_a_number_is_an_integer_with_a_unit(text):
    with pytest.raises(ValueError, match="--rows"):
        cases.number("--rows", text)
    assert [cases.number("--rows", good) for good in ("7", "64K", "1M", "2k")] == [7, 65536, 1048576, 2048]


@pytest.mark.parametrize(
    "text",
    [
        "attend",
        "gated:rows=1,cache=hot",
        "append_index:rows=1",
        "append_index:rows=one,cache=hot",
        "append_index:rows=1,cache=warm",
        "append_index:rows=1,cache=hot,context=64",
    ],
)
def test_a_bad_case_string_is_refused(text):
    with pytest.raises(ValueError, match="case "):
        cases.parse(text)


def test_floors_are_of_the_place_where_the_data_lies():
    assert floors.rate(LIMITS, 1000, "hot") == 200 and floors.rate(LIMITS, 1000, "cold") == 12
    # Between two sizes the data may lie where the smaller one does.
    assert floors.rate(LIMITS, 1 << 20, "hot") == 200 and floors.rate(LIMITS, 1 << 23, "hot") == 80
    assert floors.rate(LIMITS, 1 << 30, "hot") == 12
    found = floors.floor(LIMITS, 1_200_000, 5_000_000_000, "cold")
    assert (found.bytes_us, found.macs_us, found.us) == (100.0, 5000.0, 5000.0)
    assert floors.floor(LIMITS, 0, 0, "hot").us == LIMITS.least_us


def test_only_a_time_well_below_the_floor_is_impossible():
    least = floors.floor(LIMITS, 1_200_000, 1, "cold")
    assert floors.impossible(81.0, least) == "" and "work is left out" in floors.impossible(79.0, least)
    better = floors.best(
        LIMITS, Limits("a machine", 1, tuple(Rate(r.bytes, 20.0, 20.0) for r in RATES), 0.4, 0.03, 1, "")
    )
    assert [rate.most for rate in better.rates] == [200.0, 80.0, 20.0]
    assert (better.small_us, better.least_us) == (0.4, 0.02)


def test_exponents():
    assert exponents.fitted([(x, 3 * x**1.5) for x in (1, 2, 8, 64)]) == pytest.approx(1.5)
    assert exponents.fitted([(1, 7), (10, 7), (100, 7)]) == 0
    for points in ([(1, 1)], [(1, 1), (2, 0)], [(2, 1), (2, 3)], [(1, 1), (2, float("inf"))]):
        with pytest.raises(ValueError, match="points"):
            exponents.fitted(points)
    found = {(one.contestant, one.axis): one for one in made().exponents}
    assert found["cpu", "context"].exponent == pytest.approx(1) and len(found["cpu", "context"].points) == 4
    assert found["mine", "context"].last == pytest.approx(1) and found["cpu", "rows"].exponent == pytest.approx(0.5)
    assert set(found) == {("cpu", "context"), ("mine", "context"), ("cpu", "rows")}


def test_a_report_fits_its_schema_and_reads_back():
    held = jsonschema.Draft202012Validator(json.loads((root() / schema.FOLDER / "bench.schema.json").read_text()))
    found = made()
    plain = json.loads(msgspec.json.encode(found))
    assert held.is_valid(plain) and msgspec.convert(plain, Bench) == found
    assert not held.is_valid({**plain, "version": 2}) and not held.is_valid({**plain, "timings": [{}]})


def test_a_page_has_the_times_and_plots_with_the_floor():
    text = html.text(document.of(made(), lambda case: f"qsa bench --case '{case}'"))
    assert text.count("<svg") == 2 and text.count("currentColor") > 2
    assert "exponent 1.00" in text and ">floor<" in text and "0.50 x" not in text and "2.00 x, FASTER" in text
    assert "ids &lt;b&gt; differ" in text and "A &lt;fast&gt; one" in text and "2000 MHz, load 1.5" in text
    assert "qsa bench --case" in text and not re.search(r'(?:src|href)="http', text)
    assert document.of(made()).verdict == "wrong"


def test_without_matplotlib_the_page_says_so(monkeypatch):
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    found = document.of(made())
    assert found.pictures == {} and any("matplotlib is missing" in line for line in found.summary)


def test_markdown_has_the_tables():
    text = markdown.text(document.of(made(), pictures=False))
    assert "| case | backend | time |" in text and "## Scaling" in text and "## Limits of the machine" in text
    assert "<svg" not in text


def test_two_reports_are_compared():
    before, now = made(), made(2.0)
    found = changes.diff(before, now, 1.5)
    assert len(found.slower) == 4 and not found.failed and not found.faster and found.unchanged == 7
    assert len(changes.diff(now, before, 1.5).faster) == 4
    assert next(line for line in changes.lines(found) if line.startswith("slower")).endswith("16 us became 32 us")
    right = msgspec.structs.replace(before, timings=before.timings[:-1])
    assert changes.diff(right, before, 1.5).failed == [before.timings[-1]]
    assert changes.as_json(changes.diff(right, before, 1.5))["failed"][0]["reason"] == "ids <b> differ"
    with pytest.raises(ValueError, match="factor"):
        changes.diff(before, now, 1.0)


def test_the_limits_of_this_machine():
    found = cpu.rate(1 << 20, 1)
    assert found.bytes == 1 << 20 and found.copy_gb_s > 0.05 and found.read_gb_s > 0.05
    assert cpu.macs_per_s({"avx2": True}, 2, 3000.0) == (2 * 64 * 3e9, "2 cores x 64 a cycle (AVX2) x 3000 MHz")
    assert "tells no highest clock" in cpu.macs_per_s({}, 1, None)[1]
    assert cpu.state_reader()().throttled == () and cpu.last_cache() > 1 << 14


class FakeNvml:
    """NVML with a device that is hot, and tells no power."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def nvmlDeviceGetPowerUsage(self, handle):
        raise self.NVMLError("not supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return 0x44

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 1200

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return 1980

    def nvmlDeviceGetTemperature(self, handle, kind):
        return 84


def test_the_state_of_a_device_by_nvml():
    found = nvml.by_nvml(FakeNvml(), SimpleNamespace())
    reasons = ("software power cap", "hardware thermal slowdown")
    assert found == State(clock_mhz=1200, most_mhz=1980, temperature=84, watts=None, throttled=reasons)
    assert document.state_text(found).startswith("1200 of 1980 MHz, 84 C, throttled: software power cap")


def test_contestants_have_names_of_their_own():
    assert run.distinct(["cpu", "mine"], ["exact", "float"]) == ["cpu", "mine"]
    assert run.distinct(["cpu", "cpu", "cpu"], ["exact", "float", "exact"]) == [
        "cpu exact",
        "cpu float",
        "cpu exact #2",
    ]
    assert run.short_name("a/b/kernel.py:Thing") == "kernel:Thing" and run.short_name("cpu") == "cpu"

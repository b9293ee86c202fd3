"""Progress: a line now and then in a pipe, a bar on a terminal, and the time left."""

import io
import os
import pty
import time

import pytest

from qsa.parity import progress


def test_a_line_comes_again_and_again_where_there_is_no_terminal():
    out = io.StringIO()
    with progress.shown("qsa golden check", out, interval=0.05) as work:
        time.sleep(0.2)
        work.begin("3 goldens", 10.0)
        work.advance(4.0)
        time.sleep(0.2)
    lines = out.getvalue().splitlines()
    assert len(lines) >= 4 and lines[0] == "qsa golden check, 0:00 passed"
    assert lines[-1].startswith("qsa golden check: 3 goldens, 40 % done, 0:00 passed, about 0:00 left")
    time.sleep(0.15)
    assert out.getvalue().splitlines() == lines  # nothing comes behind the end


def test_nothing_is_silent_for_more_than_ten_seconds():
    assert 0 < progress.INTERVAL < 10


def test_short_work_prints_nothing():
    out = io.StringIO()
    with progress.shown("short", out):
        pass
    assert out.getvalue() == ""


def test_an_exception_ends_the_lines():
    out = io.StringIO()
    with pytest.raises(ZeroDivisionError), progress.shown("x", out, interval=0.05):
        raise ZeroDivisionError
    time.sleep(0.15)
    assert out.getvalue() == ""


def test_the_time_left_is_that_of_the_rest_at_the_rate_so_far(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    work = progress.Work("x")
    now[0] += 50
    work.begin("y", 4.0, estimate=100.0)
    assert work.seconds_left() == 100.0
    now[0] += 30
    assert work.seconds_left() == 70.0
    work.advance(1.0)
    assert work.seconds_left() == 90.0
    assert work.line() == "x: y, 25 % done, 1:20 passed, about 1:30 left"
    work.advance(3.0)
    assert work.seconds_left() == 0.0
    work.begin("z")
    work.advance(3.0)
    assert work.seconds_left() is None and work.line() == "x: z, 1:20 passed"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3725, "1:02:05")])
def test_a_time_as_text(seconds, text):
    assert progress.clock_text(seconds) == text


def test_a_terminal_has_a_bar():
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal:
        with progress.shown("qsa golden check", terminal) as work:
            work.begin("164 goldens", 2.0, estimate=125.0)
            time.sleep(0.4)
            work.advance(1.0)
            time.sleep(0.6)
        shown = os.read(reader, 65536).decode()
    os.close(reader)
    assert "164 goldens" in shown and "about 2:05 left" in shown and "passed" not in shown

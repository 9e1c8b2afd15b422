"""What Ctrl-C does while a sweep is put in order."""

from __future__ import annotations

import signal

import pytest

from sweeps.signals import closing


def test_one_more_interruption_waits_until_all_is_put_away() -> None:
    before = signal.getsignal(signal.SIGINT)
    put_away = False
    with closing():
        signal.raise_signal(signal.SIGINT)
        put_away = True
    assert put_away
    assert signal.getsignal(signal.SIGINT) is before


def test_whoever_insists_is_heard() -> None:
    before = signal.getsignal(signal.SIGINT)
    with closing():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before

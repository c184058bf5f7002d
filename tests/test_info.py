"""`counterpoise info --check`: sound machines pass, and a broken one is told what is broken."""

import sys
from importlib.metadata import version

import pytest
import torch

from counterpoise import cli


def run(monkeypatch, capsys, *arguments):
    """Exit code and output of the command."""
    monkeypatch.setattr(sys, "argv", ["counterpoise", "info", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, capsys.readouterr().out


def test_versions_alone(monkeypatch, capsys):
    code, out = run(monkeypatch, capsys)
    assert code == 0
    assert f"torch        {version('torch')}" in out
    assert "train, save, load" not in out


@pytest.mark.slow
def test_a_sound_machine_passes(monkeypatch, capsys):
    code, out = run(monkeypatch, capsys, "--check")
    assert code == 0, out
    assert "WRONG" not in out
    assert "ok     losses and gradients" in out
    assert "ok     train, save, load" in out


@pytest.mark.slow
def test_a_device_that_computes_wrongly_is_named(monkeypatch, capsys):
    right = torch.log_softmax
    monkeypatch.setattr(
        torch, "log_softmax", lambda given, dim=-1: right(given * (1 + 1e-3 * (given.dtype != torch.float64)), dim)
    )
    code, out = run(monkeypatch, capsys, "--check")
    assert code == 1
    assert "WRONG  losses and gradients   ArithmeticError: relative error 0.00" in out
    assert "ok     train, save, load" in out

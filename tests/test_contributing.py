"""CONTRIBUTING.md's "Add a loss in three edits", followed to the letter in a copy of the repository."""

import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent


def edits() -> list[str]:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.split("## Add a loss in three edits")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    return [textwrap.dedent(re.sub(r"^   ", "", block, flags=re.MULTILINE)) for block in blocks]


def append_to_table(path: Path, table: str, line: str, imported_from: str) -> None:
    text = path.read_text()
    start = text.index(f"{table}: dict")
    end = text.index("\n}\n", start)
    text = text[: end + 1] + textwrap.indent(textwrap.dedent(line), "    ") + text[end + 1 :]
    path.write_text(text.replace(f"from {imported_from} import (", f"from {imported_from} import (\n    poly1,"))


IN_THE_COPY = """
import runpy, sys

for name in [name for name in sys.modules if name.partition(".")[0] == "counterpoise"]:
    del sys.modules[name]
sys.path.insert(0, "src")
runpy.run_module("pytest", run_name="__main__", alter_sys=True)
"""


def test_three_edits_add_a_loss(tmp_path, programs):
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    function, method, row = edits()
    losses = tmp_path / "src/counterpoise/functional/losses.py"
    losses.write_text(losses.read_text() + "\n\n" + function)
    functional = "counterpoise.functional.losses"
    append_to_table(tmp_path / "src/counterpoise/recipes/methods.py", "METHODS", method, functional)
    append_to_table(tmp_path / "tests/loss_table.py", "LOSSES", row, functional)
    command = [programs / "python", "-c", IN_THE_COPY, "-q", "-p", "no:cacheprovider", "-k", "poly1"]
    command += ["-m", "not long", "--doctest-modules"]
    command += ["tests/test_losses.py", "tests/test_objectives.py", "src/counterpoise/functional/losses.py"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # what is imported there cannot become a plugin
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    # Definition, gradients at four K, contract, compilation in two dtypes, soft labels, weights, ...; method; doctest.
    passed = int(re.search(r"(\d+) passed", result.stdout).group(1))
    assert passed >= 12, result.stdout

"""What the workflows run is what was reviewed."""

import re
from pathlib import Path

WORKFLOWS = sorted(Path(__file__).parents[1].glob(".github/workflows/*.yml"))


def test_actions_are_pinned_by_commit_with_their_version():
    used = [line.strip() for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    from_elsewhere = [line for line in used if "uses: ./" not in line]
    assert from_elsewhere
    for line in from_elsewhere:
        assert re.fullmatch(r"(- )?uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_nothing_is_installed_in_whatever_version_is_there():
    for path in [*WORKFLOWS, *sorted(Path(__file__).parents[1].glob(".ci/*"))]:
        for line in path.read_text().splitlines():
            if re.search(r"\bpip install\b", line) and " -m uv " not in line:
                assert "--require-hashes" in line, f"{path.name}: {line}"
            assert "pipx" not in line, f"{path.name}: {line}"

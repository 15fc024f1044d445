"""The scenarios both SDKs run, against two real daemons, in both fronts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import Daemon, Front
from scenario import Runner

FILE = Path(__file__).resolve().parents[2] / "scenario" / "scenario.json"
SCENARIOS: list[dict[str, Any]] = json.loads(FILE.read_text())["scenarios"]


@pytest.fixture(scope="session")
def pair(request: pytest.FixtureRequest) -> dict[str, tuple[str, str]]:
    """Target and address of A and B: from the environment, or daemons of our own."""
    given = {name: os.environ.get(f"RDSD_SCENARIO_{name}", "") for name in "AB"}
    if all(given.values()):
        return {name: (value.split(",")[0], value.split(",")[1]) for name, value in given.items()}
    daemons: tuple[Daemon, Daemon] = request.getfixturevalue("daemons")
    return {name: (d.target, d.address) for name, d in zip("AB", daemons, strict=True)}


@pytest.fixture
def front(local_front: Front) -> Front:
    return local_front


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: str(s["name"]))
async def test_scenario(
    front: Front, pair: dict[str, tuple[str, str]], scenario: dict[str, Any]
) -> None:
    await Runner(front, pair, scenario).run()

"""Everything that runs on a GPU, on one that is not there: no mix of devices, no float64, and no waits where none are needed.

Each group of cases runs in a process of its own (run_cases.py). Cases run as they are, and with functions broken on purpose
(breaks.py), which exactly the cases named there must find.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

import pytest

import vitrine
from tests.devices.breaks import BREAKS
from tests.devices.cases import CASES, NETWORKS
from tests.devices.probes import PROBES
from vitrine.evaluation.evaluators import EVALUATORS
from vitrine.models.config import Pool, Position, PositionInsertion, ViTConfig
from vitrine.models.registry import FAMILIES, find_family, resolve_config
from vitrine.objectives.config import PatchTarget

ROOT = Path(__file__).parent.parent.parent
NUM_PROCESSES = 2
Report = dict[str, Any]


def run_group(group: str, out: Path) -> Report:
    """Run a group in a process of its own, in which warnings are errors, and return the faults it found."""
    paths = os.pathsep.join([str(Path(vitrine.__file__).parent.parent), str(ROOT)])
    # No real GPU, and one thread: tests share the machine.
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "error", "-m", "tests.devices.run_cases", group, str(out)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Report]]]:
    """Start the groups of the chosen tests, and give what they will find."""
    chosen = {item.callspec.params.get("group") for item in request.session.items if hasattr(item, "callspec")}
    folder = tmp_path_factory.mktemp("devices")
    with ThreadPoolExecutor(NUM_PROCESSES) as pool:
        groups = [group for group in (*CASES, "probes") if group in chosen]
        yield {group: pool.submit(run_group, group, folder / f"{group}.json") for group in groups}


@pytest.fixture
def report(group: str, reports: dict[str, Future[Report]]) -> Report:
    """What a group found; skips where torch cannot have the fake device."""
    content = reports[group].result()
    if "missing" in content:
        pytest.skip(content["missing"])
    return content


@pytest.mark.parametrize(("group", "case"), [("probes", name) for name in PROBES])
def test_the_fake_device_sees(group: str, case: str, report: Report) -> None:
    assert tuple(fault["kind"] for fault in report["cases"][case]) == PROBES[case].kinds


@pytest.mark.parametrize(("group", "case"), [(group, case) for group, cases in CASES.items() for case in cases])
def test_runs_on_a_device(group: str, case: str, report: Report) -> None:
    assert report["cases"][case] == []


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, breaks in BREAKS.items() for name in breaks])
def test_broken_function_is_found(group: str, name: str, report: Report) -> None:
    broken, found = BREAKS[group][name], {}
    for case, faults in report["broken"][name].items():
        new = [fault["kind"] for fault in faults if fault not in report["cases"][case]]
        if new:
            found[case] = broken.kind in new
    assert found == dict.fromkeys(select_cases(group, broken.cases), True)


def select_cases(group: str, patterns: tuple[str, ...]) -> set[str]:
    """Return the cases of a group that match one of the patterns; every pattern matches some."""
    matches = {pattern: {case for case in CASES[group] if fnmatchcase(case, pattern)} for pattern in patterns}
    assert all(matches.values()), matches
    return set[str]().union(*matches.values())


@pytest.mark.parametrize("cases", CASES)
def test_every_case_can_fail(cases: str) -> None:
    found = [select_cases(cases, broken.cases) for broken in BREAKS[cases].values()]
    assert set[str]().union(*found) == set(CASES[cases])


def test_no_part_of_a_network_is_left_out() -> None:
    configs = [resolve_config(name, **settings) for name, settings in NETWORKS.values()]
    assert {find_family(config) for config in configs} == set(FAMILIES)
    vits = [config for config in configs if isinstance(config, ViTConfig)]
    assert {config.pool for config in vits} == set(get_args(Pool))
    assert {config.position for config in vits} == set(get_args(Position))
    assert {config.position_insertion for config in vits} == set(get_args(PositionInsertion))


def test_no_target_and_no_evaluator_is_left_out() -> None:
    assert {f"masked {target}" for target in get_args(PatchTarget)} <= set(CASES["training"])
    assert {name.replace("_", "-") for name in EVALUATORS} <= set(CASES["evaluation"])

"""Run a group of cases on the fake device, as they are and with each break of the group; write the faults as JSON.

python -m tests.devices.run_cases GROUP FILE
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.devices.breaks import BREAKS
from tests.devices.cases import CASES
from tests.devices.fake_device import FakeDevice, Fault, NoFakeDevice
from tests.devices.probes import PROBES

Case = Callable[[FakeDevice], None]
Faults = dict[str, list[dict[str, Any]]]
"""Case -> faults."""


def run_case(name: str, run: Case) -> list[Fault]:
    """Return the faults of a case, each once; an error is one too."""
    torch.manual_seed(0)
    with FakeDevice(name) as device:
        try:
            run(device)
        except Exception as error:
            device.record_error(error)
    return list(dict.fromkeys(device.faults))


def run_cases(cases: Mapping[str, Case]) -> Faults:
    """Return the faults of all cases of a group."""
    return {name: [asdict(fault) for fault in run_case(name, run)] for name, run in cases.items()}


def run_broken_cases(group: str) -> dict[str, Faults]:
    """Return the faults of all cases of a group with each of its breaks."""
    found = {}
    for name, each in BREAKS[group].items():
        with each.apply():
            found[name] = run_cases(CASES[group])
    return found


def run_group(group: str) -> dict[str, Any]:
    """Return the faults of a group, or why there is no fake device."""
    try:
        FakeDevice.register()
    except NoFakeDevice as error:
        return {"missing": str(error)}
    if group == "probes":
        return {"cases": run_cases(PROBES)}
    return {"cases": run_cases(CASES[group]), "broken": run_broken_cases(group)}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run_group(sys.argv[1])))

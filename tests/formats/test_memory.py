"""Peak memory of loading, and that a loaded model no longer needs its file.

Measured in a separate process by the kernel's count of resident pages; mapped files count too.
"""

import json
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.config import FormatName
from vitrine.formats.save import save_checkpoint
from vitrine.models.config import ModelConfig, ViTConfig
from vitrine.models.registry import build_meta_model

TINY = ViTConfig(width=64, depth=1, num_heads=1, mlp_dim=128, image_size=(32, 32), num_classes=3)
LARGE = ViTConfig(width=768, depth=6, num_heads=12, mlp_dim=3072)  # 170 MB
# The weights, plus the tensor that is being read and what the allocator keeps.
MAX_RATIO = 1.25

# Arguments: a model to load first, so that nothing is imported later, and the model to measure.
MEASURE = """
import json, os, sys, warnings
from pathlib import Path
from vitrine.formats.load import load_model

def read_status(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024

warnings.simplefilter("ignore")
warmup, source = map(Path, sys.argv[1:])
load_model(warmup)
idle = read_status("VmRSS")
try:
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
except OSError:
    pass  # then it is the peak since the start, which is at least as high
model = load_model(source)
taken = read_status("VmHWM") - idle
for path in [source] if source.is_file() else source.glob("*.safetensors"):
    os.truncate(path, 0)
values = [[float(parameter.min()), float(parameter.max())] for parameter in model.parameters()]
print(json.dumps({"taken": taken, "weights": sum(p.nbytes for p in model.parameters()), "values": values}))
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    taken: int
    """Peak bytes while loading, beyond those of the idle process."""
    weights: int
    """Bytes of the loaded model's parameters."""
    values: list[list[float]]
    """Minimum and maximum of each parameter, read when the file was gone."""


def write_counted(path: Path, config: ModelConfig, format: FormatName) -> None:
    """Write a checkpoint whose parameters are filled with 0, 1, 2 and so on."""
    model = build_meta_model(config).to_empty(device="cpu")
    with torch.no_grad():
        for count, parameter in enumerate(model.parameters()):
            parameter.fill_(count)
    preprocessing = build_inception_preprocessing(config.image_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_checkpoint(Checkpoint(model, preprocessing), path, format)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc, which Linux has")
@pytest.mark.parametrize("format", ["vitrine", "hf"])  # hf stores query, key and value apart
def test_loading_takes_little_more_than_the_weights(format: FormatName, tmp_path: Path) -> None:
    for name, written in (("tiny", TINY), ("large", LARGE)):
        write_counted(tmp_path / name, written, format)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "tiny"), str(tmp_path / "large")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, f"exit code {run.returncode}: {run.stderr}"  # -7 if it read from the truncated file
    measured = Measured(**json.loads(run.stdout))
    num_parameters = sum(parameter.numel() for parameter in build_meta_model(LARGE).parameters())
    assert measured.weights == 4 * num_parameters
    assert measured.taken <= MAX_RATIO * measured.weights, f"{measured.taken / measured.weights:.3f} times the weights"
    assert measured.values == [[count, count] for count in range(len(measured.values))]

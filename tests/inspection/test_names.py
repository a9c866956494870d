"""What `vitrine.inspection` offers, without torch until it is used."""

import subprocess
import sys

import vitrine.inspection


def test_every_name_can_be_had() -> None:
    assert sorted(vitrine.inspection.HOMES) == sorted(vitrine.inspection.__all__)
    for name in vitrine.inspection.__all__:
        assert getattr(vitrine.inspection, name).__name__ == name


def test_settings_come_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from vitrine.inspection.config import RolloutConfig; RolloutConfig()"
    subprocess.run([sys.executable, "-c", code], check=True)

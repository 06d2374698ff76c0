"""What docs/devices.md shows can be used as it stands."""

import re
import tomllib
from pathlib import Path

import pytest

from shmsim.config import DeviceConfig, parse_config

PAGE = Path(__file__).parents[2] / "docs" / "devices.md"


@pytest.fixture
def shown():
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return tomllib.loads(block)


def test_the_config_it_shows_is_accepted_and_holds_the_defaults(shown, tmp_path):
    steps = "n_decode,step_ns\n" + "8,2000000\n" * 20
    (tmp_path / shown["device"]["file"]).write_text(steps)
    with_prompts = {**shown["device"], "per_prefill_token": "1us"}
    device = parse_config({**shown, "device": with_prompts}, tmp_path).device
    assert device.step_time.mean_ns(4, 0, 0) == pytest.approx(2_000_000)
    plain = DeviceConfig(kind="cuda")
    for key in ("model", "max_len", "sleep_ns", "collective", "observe", "memory", "kernels"):
        assert getattr(device, key) == getattr(plain, key)

"""The settings files that are shipped are read by the service itself."""

import pytest
from deployment import FILES


@pytest.mark.parametrize("name", ["docker/serve.toml", "kubernetes/base/serve.toml"])
def test_the_service_accepts_the_settings(name):
    reader = pytest.importorskip("threeloops.product.service.settings", reason="the service is not here yet")
    settings = reader.load_settings(FILES / name, {})
    assert settings.port == 8000 and settings.host == "0.0.0.0"


def test_a_container_without_keys_is_for_trying_only():
    text = (FILES / "docker/serve.toml").read_text()
    assert "without keys" in text and "keys_file" not in text
    assert "keys_file" in (FILES / "kubernetes/base/serve.toml").read_text()

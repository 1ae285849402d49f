"""The way to a cluster's dashboard: by the environment's proxy, past it where that says so, never out of a tunnel."""

from __future__ import annotations

import pytest

from sweeps.cluster import private_ray

pytestmark = pytest.mark.unit

PROXY = "http://proxy.example:3128"
NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("url", "environment", "goes_by"),
    [
        ("http://head:8265", {}, None),
        ("http://head:8265", {"HTTP_PROXY": PROXY}, PROXY),
        ("http://head:8265", {"http_proxy": "proxy.example:3128"}, PROXY),
        ("http://head:8265", {"HTTPS_PROXY": PROXY}, None),
        ("https://head", {"HTTPS_PROXY": PROXY}, PROXY),
        ("http://head:8265", {"ALL_PROXY": PROXY}, PROXY),
        ("http://head:8265", {"HTTP_PROXY": PROXY, "NO_PROXY": "head"}, None),
        ("http://head.example:8265", {"HTTP_PROXY": PROXY, "no_proxy": ".example"}, None),
        ("http://10.0.0.7:8265", {"HTTP_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, None),
        ("http://10.0.0.7:8265", {"HTTP_PROXY": PROXY, "NO_PROXY": "other"}, PROXY),
        *[
            (f"http://{here}:40001", {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}, None)
            for here in ("127.0.0.1", "127.1.2.3", "localhost", "[::1]")
        ],
    ],
)
def test_a_cluster_is_asked_by_the_proxy_that_the_environment_names_and_a_tunnel_by_none(
    url: str, environment: dict[str, str], goes_by: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert private_ray.proxy_to(url) == goes_by

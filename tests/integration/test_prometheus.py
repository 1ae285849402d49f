"""Each query of the dashboard, asked of a real Prometheus that has scraped a real driver's metrics from a real Ray."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration import metered
from tests.integration.clusters import free_port

pytestmark = [
    pytest.mark.alone,
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="not installed: prometheus (Debian's package)"),
]

CLUSTERS = Path(__file__).parents[2] / "clusters"
BOARD = json.loads((CLUSTERS / "grafana.json").read_text())
NEEDS_A_GPU = {"ray_node_gpus_utilization", "ray_node_gram_used"}  # Ray's own, of NVML's figures
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
WITHIN_S = 90.0


class Prometheus:
    """Scrapes one port every second, by the shipped file as far as it can be used here."""

    def __init__(self, folder: Path, of: int) -> None:
        settings = yaml.safe_load((CLUSTERS / "prometheus.yml").read_text())
        settings["global"]["scrape_interval"] = "1s"
        for job in settings["scrape_configs"]:
            job["static_configs"] = [{"targets": [f"127.0.0.1:{of}"] if job["job_name"] == "head" else []}]
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(settings))
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self.command = ["prometheus", f"--config.file={file}", f"--web.listen-address=127.0.0.1:{port}"]
        self.command += [f"--storage.tsdb.path={folder / 'tsdb'}", "--log.level=error"]

    def asked(self, endpoint: str, **about: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{endpoint}?{urllib.parse.urlencode(about)}", timeout=10) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def values(self, query: str) -> list[float]:
        """Return the value of each series that answers, as Grafana would ask with all sweeps chosen."""
        query = query.replace("$sweep", ".*").replace("$__rate_interval", "1m")
        return [float(one["value"][1]) for one in self.asked("query", query=query)["result"]]


@contextlib.contextmanager
def running(command: list[str], **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, **more) as process:
        try:
            yield process
        finally:
            if process.stdin:
                process.stdin.close()  # a driver takes its Ray with it
            else:
                process.terminate()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has seen launches begin and end."""
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    found = Prometheus(folder, port)
    driver = [sys.executable, "-m", "tests.integration.metered", str(port), str(tmp_path_factory.mktemp("ray"))]
    with running(driver, stdin=subprocess.PIPE), running(found.command):
        give_up = time.monotonic() + WITHIN_S
        while True:
            with contextlib.suppress(OSError):
                if found.values("rate(ray_sweep_launch_seconds_count[1m]) > 0"):
                    break
            assert time.monotonic() < give_up, "no trial's launch has come to Prometheus"
            time.sleep(0.5)
        yield found


@pytest.mark.parametrize("query", QUERIES)
def test_each_query_of_the_dashboard_is_answered(prometheus: Prometheus, query: str) -> None:
    found = prometheus.values(query)  # a mistake in it is an error
    if query not in NEEDS_A_GPU:
        assert found
        assert all(math.isfinite(value) and value >= 0 for value in found)


def test_the_panels_show_what_the_driver_has(prometheus: Prometheus) -> None:
    of = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in BOARD["panels"]}
    held, idle = of["GPUs: held and idle"]
    assert prometheus.values(held) == [3]
    assert prometheus.values(idle) == [metered.NODES * metered.GPUS - 3]
    assert prometheus.values(of["Nodes that sweeps may use"][0]) == [metered.NODES]
    assert prometheus.values(of["GPU time: share that measures"][0]) == pytest.approx([1 / 3])
    median, most = (prometheus.values(query)[0] for query in of["Launch of a trial"])
    assert 0.2 <= median <= most <= 0.5  # the bucket in which all of them were


def test_the_sweeps_to_choose_from_are_those_that_ran(prometheus: Prometheus) -> None:
    (variable,) = (one for one in BOARD["templating"]["list"] if one["name"] == "sweep")
    assert variable["query"]["query"] == "label_values(ray_sweep_nodes, sweep)"  # of Grafana; it asks Prometheus this:
    assert prometheus.asked("label/sweep/values", **{"match[]": "ray_sweep_nodes"}) == [metered.SWEEP]


def test_the_shipped_settings_are_prometheuss() -> None:
    if not shutil.which("promtool"):
        pytest.skip("not installed: promtool, which comes with prometheus")
    checked = subprocess.run(["promtool", "check", "config", CLUSTERS / "prometheus.yml"], check=False)
    assert checked.returncode == 0

# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus, with a real Prometheus: it scrapes them, and answers every query of the
board and of the alert rules in configs/monitoring. promtool shows that each alert fires."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest

import jobs
import ports
from support import REPOSITORY
from test_agent import Engine, checkpoint_host, name, replay  # noqa: F401

BENCH = REPOSITORY / "build/bin/metrics_bench"
MONITORING = REPOSITORY / "configs/monitoring"
BOARD = MONITORING / "grafana_dashboard.json"


def need(program):
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"there is no {program} (Debian: prometheus)")
    return path


def promtool(*arguments):
    result = subprocess.run(
        [need("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@functools.cache
def text_after(versions):
    """The metrics after so many versions."""
    if not BENCH.exists():
        pytest.skip(f"{BENCH} is not there: it is built with the tests")
    made = subprocess.run([BENCH, "--print", str(versions)], capture_output=True, timeout=60)
    if b"prometheus-cpp-dev" in made.stderr:
        pytest.skip(made.stderr.decode())
    assert made.returncode == 0, made.stderr
    return made.stdout


def board_queries():
    """(title, query) of every panel; Grafana replaces the interval."""
    board = json.loads(BOARD.read_text())
    for panel in board["panels"]:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "1m")
            assert "$" not in query, query
            yield panel["title"], query


def rule_queries():
    text = subprocess.run(
        [
            "/usr/bin/python3",
            "-c",
            "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)",
        ],
        input=(MONITORING / "prometheus_rules.yml").read_text(),
        capture_output=True,
        text=True,
    )
    if text.returncode != 0:
        pytest.skip("there is no yaml (Debian: python3-yaml)")
    for group in json.loads(text.stdout)["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


# --- a Prometheus --------------------------------------------------------------------------------


@contextmanager
def served_metrics():
    """Serves the text as the processes' server does; each scrape has one more version."""

    class Handler(http.server.BaseHTTPRequestHandler):
        versions = 2

        def do_GET(self):
            if self.path == "/metrics" and Handler.versions < 40:
                Handler.versions += 1
            body = text_after(Handler.versions) if self.path == "/metrics" else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Prometheus:
    def __init__(self, work, targets, more=""):
        work.mkdir(parents=True, exist_ok=True)
        self.url = f"http://127.0.0.1:{ports.free_port()}"
        (work / "prometheus.yml").write_text(
            f"""
global: {{ scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s }}
rule_files: ["{MONITORING}/prometheus_rules.yml"]
scrape_configs:
  - job_name: driftless
    {more}
    static_configs: [{{ targets: {json.dumps([f"127.0.0.1:{port}" for port in targets])} }}]
"""
        )
        line = [
            need("prometheus"), f"--config.file={work}/prometheus.yml", f"--storage.tsdb.path={work}/data",
            f"--web.listen-address={self.url.removeprefix('http://')}", "--log.level=warn",
        ]  # fmt: skip
        self.log = (work / "log").open("w")
        self.process = subprocess.Popen(line, stdout=self.log, stderr=self.log)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def get(self, path, **parameters):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            answered = json.load(answer)
        assert answered["status"] == "success", answered
        return answered["data"]

    def query(self, expression):
        """[(labels, value)]"""
        found = self.get("query", query=expression)
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in found["result"]]

    def wait_for(self, expression, seconds=300):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, "prometheus ended"
            try:
                if self.query(expression):
                    return
            except OSError:
                pass  # Prometheus does not listen yet
            time.sleep(0.2)
        targets = self.get("targets")["activeTargets"]
        raise AssertionError(f"no {expression}: {[t['lastError'] for t in targets]}")


@contextmanager
def prometheus(work, *targets, more=""):
    made = Prometheus(work, targets, more)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def scraping(tmp_path_factory):
    text_after(3)
    with served_metrics() as port, prometheus(tmp_path_factory.mktemp("prometheus"), port) as found:
        found.wait_for("driftless_version > 8")  # several scrapes: rates have values
        yield found


# --- tests ---------------------------------------------------------------------------------------


def test_the_text_has_the_format_of_prometheus():
    result = subprocess.run(
        [need("promtool"), "check", "metrics"], input=text_after(3), capture_output=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert not result.stderr, result.stderr  # findings of Prometheus' linter


def test_every_query_of_the_board_has_a_value(scraping):
    queries = list(board_queries())
    assert len(queries) > 15
    for title, query in queries:
        assert scraping.query(query), (title, query)


def test_every_query_of_the_rules_is_answered(scraping):
    for alert, query in rule_queries():
        scraping.query(query)
        names = set(re.findall(r"\bdriftless_\w+", query))
        for metric in names:
            assert scraping.query(metric), (alert, metric)


def test_the_values_are_those_of_the_records(scraping):
    (version,) = scraping.query("max(driftless_version)")
    assert version[1] > 8
    assert scraping.query("driftless_density")[0][1] == 0.025
    queries = dict(board_queries())
    assert scraping.query("count(driftless_engine_lag)")[0][1] == 64
    assert scraping.query("count(driftless_engine_lag == 0)")[0][1] == 63
    assert scraping.query(queries["Engines without proof"])[0][1] == 1
    median = {
        labels["stage"]: value
        for labels, value in scraping.query(queries["Time per stage, median"])
    }
    assert {"compare", "encode", "send", "seal", "publish", "fetch", "stage", "pause", "apply",
            "resume", "commit"} <= median.keys()  # fmt: skip
    assert 0.1 < median["publish"] <= 0.25 and 0.05 < median["compare"] <= 0.25
    failures = {
        labels["code"]: value for labels, value in scraping.query(queries["Failures by code"])
    }
    assert failures.keys() == {"mismatch"}
    (lagging,) = scraping.query("driftless_rollout_lag > 0")
    assert lagging[0]["id"] == "rollout-63" and lagging[1] > 8


def test_an_alert_fires_in_prometheus_itself(scraping):
    scraping.wait_for('ALERTS{alertname="DriftlessEngineUnproven", alertstate="pending"}')


def test_rules_and_configuration_are_valid(tmp_path):
    promtool("check", "rules", MONITORING / "prometheus_rules.yml")
    token = tmp_path / "token"
    token.write_text("t0ken")
    shutil.copy(MONITORING / "prometheus_rules.yml", tmp_path)
    text = (MONITORING / "prometheus.yml").read_text()
    assert "/etc/prometheus/driftless_token" in text
    (tmp_path / "prometheus.yml").write_text(
        text.replace("/etc/prometheus/driftless_token", str(token))
    )
    assert "SUCCESS" in promtool("check", "config", tmp_path / "prometheus.yml")


def test_every_alert_fires():
    tests = REPOSITORY / "tests/python/prometheus/rules_test.yml"
    promtool("test", "rules", tests)
    fired = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n", tests.read_text()))
    assert fired == {alert for alert, _ in rule_queries()}


def test_the_board_can_be_imported():
    board = json.loads(BOARD.read_text())
    assert board["schemaVersion"] >= 36 and board["uid"] == "driftless" and "id" not in board
    (source,) = board["templating"]["list"]
    assert source["name"] == "datasource" and source["query"] == "prometheus"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and panel["datasource"]["uid"] == "${datasource}"
    for one in board["panels"]:  # panels do not overlap
        for other in board["panels"]:
            a, b = one["gridPos"], other["gridPos"]
            apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or (
                a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"])  # fmt: skip
            assert one is other or apart, (one["title"], other["title"])


def test_a_trainer_and_an_agent_are_scraped(work, name):  # noqa: F811
    jobs.need("status_server")
    jobs.need("prometheus")
    jobs.make_run(work / "run", np.random.default_rng(5), 8)
    engines = [Engine(work / "run/step_000000") for _ in range(2)]
    host = checkpoint_host(work, name, ("vllm", engines[0]), ("sglang", engines[1]))
    (work / "token").write_text("t0ken\n")
    (work / "token").chmod(0o600)
    ours, theirs = ports.free_port(), ports.free_port()
    token = ["--set", f"monitor.token_file={work}/token"]
    authorization = f"authorization: {{ credentials_file: {work}/token }}"
    try:
        with prometheus(work / "prometheus", ours, theirs, more=authorization) as found:
            host.hold(8)
            agent = host.start_agent("--set", f"monitor.address={theirs}", *token)
            line = ["--interval-ms", 700, "--set", f"monitor.address={ours}", *token]
            trainer = replay(host, work / "run", *line)
            found.wait_for('driftless_version >= 3 and on (instance) driftless_info{role="agent"}')
            found.wait_for("count(driftless_engine_lag == 0) == 2")
            found.wait_for("driftless_rollout_version >= 1")
            (density,) = found.query("driftless_density")
            assert 0 < density[1] < 1 and density[0]["instance"].endswith(str(ours))
            stages = {labels["stage"] for labels, _ in found.query("driftless_stage_seconds_count")}
            assert {
                "compare",
                "encode",
                "send",
                "seal",
                "publish",
                "fetch",
                "pause",
                "apply",
            } <= stages
            assert {
                labels["engine"] for labels, _ in found.query("driftless_engine_proven == 1")
            } == {engine.url for engine in engines}
            roles = {labels["role"]: labels["run"] for labels, _ in found.query("driftless_info")}
            assert roles.keys() == {"trainer", "agent"} and roles["trainer"] == roles["agent"]
            assert sum(value for _, value in found.query("driftless_failures_total")) == 0
            for alert in (
                "DriftlessNoNewVersion",
                "DriftlessEngineUnproven",
                "DriftlessEngineLags",
            ):
                assert not found.query(f'ALERTS{{alertname="{alert}", alertstate="firing"}}')
            host.go(8)
            assert jobs.finish(trainer).returncode == 0
            jobs.ended(agent)
    finally:
        jobs.stop_started()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time that the live page's script needs per update, in headless Chromium: prints a table in Markdown.

    page_bench.py [--engines 64] [--versions 10000] [--updates 60]

Every update brings one version, and a new record of every engine. The charts show all versions. The time is that of
the page's own performance.measure(): parsing, state, DOM and drawing. The floor is JSON.parse() of the same answer.
The task time, as counted by Chromium, also includes layout and style.
"""
import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import page_browser as browsers  # noqa: E402
from page_server import MadeRun, PageServer  # noqa: E402

OBSERVE = """
window.taken = {'driftless-parse': [], 'driftless-update': []};
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) taken[entry.name]?.push(entry.duration);
}).observe({type: 'measure', buffered: true});
"""


def metrics(driver):
    values = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return {value["name"]: value["value"] for value in values}["TaskDuration"] * 1000


def row(name, values):
    values = sorted(values)
    print(f"| {name} | {statistics.median(values):.1f} | {values[int(0.95 * (len(values) - 1))]:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--versions", type=int, default=10000)
    parser.add_argument("--updates", type=int, default=60)
    options = parser.parse_args()
    if browsers.MISSING:
        sys.exit(browsers.MISSING)
    made = MadeRun(options.engines, options.versions)
    server = PageServer(made.status)
    with browsers.browser() as driver:
        driver.execute_cdp_cmd("Performance.enable", {})
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": OBSERVE})
        driver.get(server.url)
        browsers.until(lambda: browsers.text(driver, "f-version") == str(made.newest()), "the page", 60)
        driver.find_element("css selector", "input[name=count][value='10000']").click()
        driver.find_element("css selector", "input[name=window][value='600']").click()
        first = driver.execute_script("return taken")
        tasks = []
        for _ in range(options.updates):
            made.step()
            before = metrics(driver)
            driver.execute_script("document.dispatchEvent(new Event('visibilitychange'))")
            browsers.until(lambda: browsers.text(driver, "f-version") == str(made.newest()), "the update")
            time.sleep(0.05)  # until it is painted
            tasks.append(metrics(driver) - before)
        taken = driver.execute_script("return taken")
    server.close()
    begin = len(first["driftless-update"])
    print(f"{options.engines} engines, {options.versions} versions, {options.updates} updates")
    print("\n| | median ms | p95 ms |\n|---|---|---|")
    row("script per update", taken["driftless-update"][begin:])
    row("floor: JSON.parse of the same answer", taken["driftless-parse"][begin:])
    row("task time per update, with layout and this benchmark's own calls", tasks)
    row("first answer, all versions at once", first["driftless-update"][:1])
    row("floor of it: JSON.parse", first["driftless-parse"][:1])


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Debian's Chromium, headless, for the tests of the live page and its benchmark."""

import base64
import contextlib
import shutil
import time

MISSING = None
try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
except ImportError:
    MISSING = "python3-selenium is not installed"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if MISSING is None and not (CHROMIUM and DRIVER):
    MISSING = "chromium and chromium-driver are not installed"


@contextlib.contextmanager
def browser(width=1280, height=900):
    options = Options()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--disable-background-networking", "--hide-scrollbars",
                 f"--window-size={width},{height}"):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(30)
    try:
        yield driver
    finally:
        driver.quit()


def viewport(driver, width, height, scale=1):
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": scale,
        "mobile": width < 600})  # fmt: skip


def scheme(driver, name):
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "features": [{"name": "prefers-color-scheme", "value": name}]})  # fmt: skip


def text(driver, element):
    return driver.execute_script("return document.getElementById(arguments[0]).textContent", element)


def until(condition, what, seconds=120):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.05)
    return value


def screenshot(driver):
    """The whole page as a PNG."""
    width, height = driver.execute_script(
        "return [document.documentElement.clientWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {
        "format": "png", "captureBeyondViewport": True, "clip": clip})  # fmt: skip
    return base64.b64decode(shot["data"])

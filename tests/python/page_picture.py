# SPDX-License-Identifier: Apache-2.0
"""Makes the screenshot of docs/operate/page.md with a made-up run: page_picture.py [FILE.png]"""

import base64
import struct
import sys
import time
import zlib
from pathlib import Path

import numpy as np

import page_browser as browsers
from page_server import MadeRun, PageServer

NOW = 1767355200.0  # fixed, so that the picture changes only with the page
FOLLOWED = 12  # number of updates
PIXELS = """
const done = arguments[1], image = new Image();
image.onload = () => {
  const canvas = new OffscreenCanvas(image.width, image.height), pen = canvas.getContext('2d');
  pen.drawImage(image, 0, 0);
  const reader = new FileReader();
  reader.onload = () => done([image.width, reader.result.split(',')[1]]);
  reader.readAsDataURL(new Blob([pen.getImageData(0, 0, image.width, image.height).data]));
};
image.src = 'data:image/png;base64,' + arguments[0];
"""


def with_palette(driver, png):
    """The same picture with 255 colours, in a third of the size."""
    driver.get("about:blank")
    width, data = driver.execute_async_script(PIXELS, base64.b64encode(png).decode())
    pixels = np.frombuffer(base64.b64decode(data), np.uint8).reshape(-1, 4)[:, :3]
    colours, index, count = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    palette = colours[np.argsort(-count)[:255]]
    distance = np.abs(colours[:, None].astype(int) - palette[None]).sum(axis=2)
    lines = distance.argmin(axis=1)[index.reshape(-1)].astype(np.uint8).reshape(-1, width)
    body = np.insert(lines, 0, 0, axis=1).tobytes()  # PNG filter type 0: none

    def chunk(kind, data):
        crc = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + crc

    header = struct.pack(">IIBBBBB", width, len(lines), 8, 3, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"PLTE", palette.tobytes())
            + chunk(b"IDAT", zlib.compress(body, 9)) + chunk(b"IEND", b""))  # fmt: skip


def main():
    path = Path(sys.argv[1] if len(sys.argv) > 1 else PICTURE)
    made = MadeRun(engines=8, versions=230, rollouts=2, now=NOW - 30 * FOLLOWED)
    clock = [NOW - 30 * FOLLOWED]
    server = PageServer(lambda since: made.status(since, clock[0]))
    with browsers.browser() as driver:
        driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "UTC"})
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {
            "source": f"window.clock = {clock[0] * 1000}; Date.now = () => window.clock"})  # fmt: skip
        browsers.viewport(driver, 1100, 900)
        browsers.scheme(driver, "light")
        driver.get(server.url)
        for step in range(FOLLOWED):
            clock[0] = NOW - 30 * (FOLLOWED - 1 - step)
            made.step(clock[0] - 4)
            made.trainer["seen"] = made.versions[-1]["time"]
            if step == FOLLOWED - 1:
                made.fail(5, behind=2, status="timeout", error="rank 2 has not answered")
            driver.execute_script(
                f"clock = {clock[0] * 1000}; document.dispatchEvent(new Event('visibilitychange'))")
            browsers.until(lambda: browsers.text(driver, "f-version") == str(made.newest()), "update")
        driver.find_element("css selector", "input[name=scale][value=log]").click()
        driver.execute_script("document.activeElement.blur()")
        time.sleep(0.5)
        path.write_bytes(with_palette(driver, browsers.screenshot(driver)))
    server.close()
    print(f"{path}: {path.stat().st_size} bytes")


PICTURE = Path(__file__).resolve().parents[2] / "docs/operate/page.png"
if __name__ == "__main__":
    main()

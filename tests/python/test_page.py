# SPDX-License-Identifier: Apache-2.0
"""The live page in Debian's Chromium shows the contents of the status."""

import contextlib
import json
import re
import time
import urllib.request
from urllib.parse import urlparse

import numpy as np
import pytest

import jobs
import page_browser as browsers
from page_browser import MISSING, text, until
from page_server import PAGE, MadeRun, PageServer, utc
from ports import free_port
from support import REPOSITORY
from test_agent import Engine, checkpoint_host, name, replay  # noqa: F401

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

# makes the page send a request at once
ASK = "document.dispatchEvent(new Event('visibilitychange'))"
HOSTILE = "<img src=x onerror=\"alert('a name')\"><script>alert(1)</script>\u202egnp.exe\u2066\n\0"
# an invisible "a" after a visible one
TAGGED = "a\U000e0061"


@pytest.fixture(scope="module")
def chromium():
    with browsers.browser() as driver:
        yield driver


@pytest.fixture
def driver(chromium):
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browsers.scheme(chromium, "light")
    chromium.get_log("browser")
    yield chromium
    chromium.get("about:blank")


@pytest.fixture
def made():
    return MadeRun(engines=12, versions=700, rollouts=3)


@pytest.fixture
def server(made):
    server = PageServer(made.status)
    yield server
    server.close()


def opened(driver, server, version):
    driver.get(server.url)
    until(lambda: text(driver, "f-version") == str(version), f"version {version}")


def ask(driver, condition, what):
    """Makes the page send requests until the condition holds."""

    def asked():
        driver.execute_script(ASK)
        return condition()

    until(asked, what)


def rows(driver, table):
    """The texts of the rows, without those of expanded details."""
    return driver.execute_script(
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr:not(.detail)`)]"
        ".map((tr) => [...tr.children].map((td) => td.textContent))", table)  # fmt: skip


def pick(driver, choice, value):
    driver.find_element("css selector", f"input[name={choice}][value='{value}']").click()


def readout(driver, chart):
    return text(driver, f"read-{chart}")


def percent(x):
    x *= 100
    return f"{x:.2f} %" if x < 10 else f"{x:.1f} %" if x < 100 else f"{x:.0f} %"


def megabytes(x):
    return f"{x / 1e6:.0f} MB"


# --- the file ------------------------------------------------------------------------------------


def test_the_file_is_small_and_self_contained():
    page = PAGE.read_text()
    assert len(page.encode()) < 200_000
    embedded = re.sub(r"\n//[^\n]*", "", re.sub(r"\n +", "\n", page))  # as CMake does
    assert len(embedded.encode()) < 65536, "the longest literal that every compiler accepts"
    assert not re.search(r"https?://(?!\S*\$)", page.replace("https?:", "")), "no address"
    assert not re.search(r"\son\w+=|javascript:|innerHTML|insertAdjacent|document\.write|eval\(|"
                         r"<link(?! rel=\"icon\" href=\"data:,\")|@import|url\(|style=\"",
                         page)  # fmt: skip


def test_reports_have_the_colours_of_the_page():
    def colours(source):
        return re.findall(r"--([\w-]+): (#\w+);", source)

    report = (REPOSITORY / "tools/compare/report_style.css").read_text()
    page = [colour for colour in colours(PAGE.read_text()) if colour[0] != "tint"]
    assert colours(report) == page


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_have_enough_contrast(scheme):
    def brightness(colour):
        parts = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]  # fmt: skip
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    block = re.findall(r":root \{(.*?)\}", PAGE.read_text(), re.S)[scheme]
    colour = dict(re.findall(r"--([\w-]+): (#\w+);", block))
    pairs = [(front, back) for front in ("text", "muted", "ok", "warn", "bad", "accent")
             for back in ("bg", "panel", "sunken")]  # fmt: skip
    pairs += [(level, f"{level}-bg") for level in ("ok", "warn", "bad", "idle")]
    pairs += [("text", "tint"), ("muted", "tint"), ("panel", "accent")]
    for front, back in pairs:
        light, dark = sorted((brightness(colour[front]), brightness(colour[back])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (front, back)


# --- what it shows -------------------------------------------------------------------------------


def test_it_shows_the_status(driver, made, server):
    made.fail(4, behind=3, status="timeout", error="no answer from rank 2")
    made.rollouts[1]["left"] = True
    status = made.status()
    opened(driver, server, 700)
    assert text(driver, "headline") == "11 of 12 engines and all 2 rollouts at version 700"
    assert driver.find_element("id", "verdict").get_attribute("class") == "is-bad"
    assert text(driver, "problems") == (
        f"1 engine failed the last update (timeout): {made.engines[4]['engine']}")  # fmt: skip
    newest = status["versions"][-1]
    assert text(driver, "run") == f"run {status['run']}"
    assert text(driver, "process") == "trainer 0 on trainer-0"
    assert text(driver, "f-trainer") == "alive"
    assert text(driver, "f-engines") == "11 / 12" and text(driver, "f-engines-sub") == "1 failed"
    assert text(driver, "f-rollouts") == "2 / 2" and text(driver, "f-rollouts-sub") == "1 left"
    assert text(driver, "f-bytes") == megabytes(newest["wire_bytes"])
    assert text(driver, "f-density") == percent(newest["density"])
    assert text(driver, "f-time") == f"{newest['total_ms'] / 1000:.2f} s"
    shown = {row[0]: row for row in rows(driver, "engines")}
    assert len(shown) == 12
    for engine in status["engines"]:
        pause = sum(engine[f"{phase}_ms"] for phase in ("pause", "apply", "resume"))
        error = f"timeout: {engine['error']}" if "error" in engine else "ok"
        row = shown[engine["engine"]]
        assert row[1:5] == [engine["kind"], str(engine["version"]), str(engine["lag"]),
                            engine["proven"] or "unproven"]  # fmt: skip
        assert row[5] == (f"{pause:.1f} ms" if pause < 100 else f"{pause:.0f} ms")
        assert re.fullmatch(r"\d+ s ago", row[6]) and row[7] == error
    assert rows(driver, "engines")[0][0] == made.engines[4]["engine"], "problems come first"
    assert [[r[0], r[1], r[3], r[6]] for r in rows(driver, "rollouts")] == [
        ["rollout-00", "700", "proven", "at newest"], ["rollout-02", "700", "proven", "at newest"],
        ["rollout-01", "700", "proven", "left"]]  # fmt: skip
    tensors = driver.execute_script(
        "return [...document.getElementById('tensors').children].map((li) =>"
        " [...li.querySelectorAll('span')].map((s) => s.textContent))")  # fmt: skip
    share = [t["changed_units"] / t["total_units"] for t in newest["most_changed"]]
    assert [t[0] for t in tensors] == [t["tensor"] for t in newest["most_changed"]]
    assert [t[2] for t in tensors] == [percent(x) for x in share]
    failures = text(driver, "failures")
    assert all(f"{code}{count}" in failures for code, count in made.refusals.items())
    assert "(!) 11 / 12 at version 700" in driver.title
    assert driver.get_log("browser") == [], "no error, and no violation of the policy"


def test_the_tensors_that_change_most_are_sorted_and_keep_their_places(driver, made, server):
    def shown():
        return driver.execute_script(
            "return [...document.getElementById('tensors').children].map((li) => [li.children[0]"
            ".textContent, li.children[2].textContent, parseFloat(li.lastElementChild.style.width)])"
        )

    tensors = [{"tensor": kind, "changed_units": n, "total_units": n * times}
               for kind, n, times in [("c", 50, 2), ("b", 80, 100), ("a", 50, 4), ("d", 100, 10)]]  # fmt: skip
    made.versions[-1]["most_changed"] = tensors
    opened(driver, server, 700)
    assert shown() == [["d", percent(0.1), 100], ["b", percent(0.01), 80], ["a", percent(0.25), 50],
                       ["c", percent(0.5), 50]]  # fmt: skip
    made.step()
    made.versions[-1]["most_changed"] = tensors[::-1]
    ask(driver, lambda: text(driver, "f-version") == "701", "version 701")
    assert [row[0] for row in shown()] == ["d", "b", "a", "c"]


def test_it_requests_only_new_versions_and_only_from_its_own_server(driver, made, server):
    opened(driver, server, 700)
    made.step()
    ask(driver, lambda: text(driver, "f-version") == "701", "version 701")
    assert text(driver, "headline") == "All 12 engines and all 3 rollouts at version 701"
    ask(driver, lambda: "/status.json?since=701" in server.requests, "the next request")
    assert set(server.requests) == {"/", "/status.json?since=0", "/status.json?since=700",
                                    "/status.json?since=701"}  # fmt: skip
    asked = driver.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert {urlparse(address).netloc for address in asked} == {urlparse(server.url).netloc}


def test_another_run_replaces_the_first_one(driver, made, server):
    opened(driver, server, 700)
    other = MadeRun(engines=2, versions=30, rollouts=0)
    other_status = json.loads(json.dumps(other.status()).replace("3f2a91c4", "77777777"))
    server.answer = lambda since: other_status | {
        "versions": [v for v in other_status["versions"] if v["version"] > since]
    }
    ask(driver, lambda: text(driver, "f-version") == "30", "the other run")
    until(lambda: text(driver, "versions-note") == "1 to 30", "all of its versions")
    assert text(driver, "run").startswith("run 77777777")
    assert len(rows(driver, "engines")) == 2 and rows(driver, "rollouts") == []


VERDICTS = [
    ({"trainer": {"state": "silent", "seen": utc(time.time() - 95)}}, "bad",
     "Trainer silent: all 12 engines and all 3 rollouts at version 700\n"
     "The trainer is silent: last sign of life"),
    ({"trainer": {"state": "ended", "seen": utc(time.time())}}, "ok",
     "Run ended: all 12 engines and all 3 rollouts at version 700"),
    ({"trainer": {"state": "unknown", "seen": ""}}, "ok", "No sign of life"),
    ({"fallback": "shared_fs"}, "warn", "The road failed: versions go by shared_fs instead"),
    ({"engines": [], "rollouts": []}, "idle", "No engine and no rollout has reported here"),
    ({"engine": {"version": 695, "lag": 5}}, "warn", "1 engine is 5 versions behind"),
    ({"engine": {"version": 699, "lag": 1}}, "idle", "1 engine one version behind"),
    ({"engine": {"proven": ""}}, "warn", "1 engine holds a version without proof"),
    ({"engine": {"digest": "ab" * 16}}, "bad", "1 engine holds other weights than version 700"),
    ({"engine": {"run": "ab" * 16}}, "bad", "1 engine holds another run"),
    ({"engine": {"version": 0, "lag": 700, "digest": ""}}, "warn", "holds no version yet"),
    ({"rollout": {"digest": "ab" * 16, "proven": False}}, "bad", "1 rollout holds other weights"),
]  # fmt: skip


def test_the_verdict(driver, made, server):
    opened(driver, server, 700)
    for change, level, words in VERDICTS:
        status = json.loads(json.dumps(made.status(700)))
        for kind in ("engine", "rollout"):
            status[f"{kind}s"][0].update(change.get(kind, {}))
        status |= {key: value for key, value in change.items() if key in status}
        server.answer = lambda since, status=status: status
        verdict = driver.find_element("id", "verdict")
        ask(driver, lambda verdict=verdict, words=words: words in verdict.text, words)
        assert verdict.get_attribute("class") == f"is-{level}", words


def test_unknown_values_are_dashes(driver, server):
    made = MadeRun(engines=1, versions=3, rollouts=0, role="agent")
    status = made.status()
    for key in ("density", "total_ms", "encoding", "most_changed", "manifest_publish_ms"):
        for version in status["versions"]:
            del version[key]
    del status["trainer"]["seen"]
    status["engines"][0] |= {"kind": "", "attempts": 0, "time": ""}
    server.answer = lambda since: status
    opened(driver, server, 3)
    assert text(driver, "f-density") == "-" and text(driver, "f-pause") == "-"
    assert text(driver, "f-trainer-sub") == "never seen"
    assert text(driver, "f-time-name") == "Time to deliver"
    assert rows(driver, "engines")[0][1] == "-" and rows(driver, "engines")[0][5:7] == ["-", "-"]
    assert "does not know" in text(driver, "tensors")
    server.answer = lambda since: {"schema": 1, "trainer": {"state": "unknown", "seen": ""}}
    driver.get(server.url)
    until(lambda: text(driver, "headline") == "No version is published yet", "an empty status")
    assert text(driver, "run") == "run -" and text(driver, "f-bytes") == "-"
    assert driver.get_log("browser") == []


# --- clicks and keys -----------------------------------------------------------------------------


def test_versions_and_scales_are_chosen_by_clicks_and_keys(driver, server):
    from selenium.webdriver.common.keys import Keys

    opened(driver, server, 700)
    density = driver.find_element("id", "density")
    assert text(driver, "versions-note") == "651 to 700"
    pick(driver, "count", 500)
    assert text(driver, "versions-note") == "201 to 700"
    driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert text(driver, "versions-note").startswith("1 to 700")
    assert density.get_attribute("aria-valuemin") == "1"
    picture = "return document.getElementById('bytes').toDataURL()"
    linear = driver.execute_script(picture)
    pick(driver, "scale", "log")
    assert driver.execute_script(picture) != linear
    for window in (60, 600, 3600, 0):
        pick(driver, "window", window)
    assert driver.get_log("browser") == []


def test_charts_read_out_versions_by_pointer_and_by_key(driver, made, server):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    opened(driver, server, 700)
    assert readout(driver, "density").startswith("Version 700 ")
    canvas = driver.find_element("id", "bytes")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    ActionChains(driver).move_to_element_with_offset(canvas, 0, 0).perform()
    version = int(re.match(r"Version (\d+) ", readout(driver, "bytes"))[1])
    assert 670 < version < 682, "the middle of 651 to 700"
    record = made.versions[version - 1]
    assert f"{megabytes(record['wire_bytes'])} on the wire" in readout(driver, "bytes")
    assert percent(record["density"]) in readout(driver, "density"), "all charts show one version"
    ActionChains(driver).move_to_element_with_offset(canvas, 0, -120).perform()
    driver.find_element("id", "times").send_keys(Keys.ARROW_LEFT + Keys.ARROW_LEFT)
    record = made.versions[697]
    assert readout(driver, "times").startswith(f"Version 698 {record['total_ms'] / 1000:.2f} s: ")
    line = driver.find_element("id", "line")
    line.send_keys(Keys.ARROW_DOWN + Keys.ARROW_DOWN)
    assert text(driver, "line-read").startswith(f"{made.engines[1]['engine']} to version 700: stage")
    assert line.get_attribute("aria-valuetext") == text(driver, "line-read")


def test_tables_are_sorted_filtered_and_expanded(driver, made, server):
    made.fail(7, behind=2, error="its second rank is gone")
    opened(driver, server, 700)
    header = {key: driver.find_element("css selector", f"#engines button[data-key={key}]")
              for key in ("name", "pause", "version")}  # fmt: skip
    header["name"].click()
    names = sorted(engine["engine"] for engine in made.engines)
    assert [row[0] for row in rows(driver, "engines")] == names
    header["name"].click()
    assert [row[0] for row in rows(driver, "engines")] == names[::-1]
    assert driver.execute_script("return document.querySelector('#engines [aria-sort=descending]')"
                                 ".textContent") == "Engine"  # fmt: skip
    header["pause"].click()
    by_pause = sorted(made.engines, key=lambda e: -e["pause_ms"] - e["apply_ms"] - e["resume_ms"])
    assert [row[0] for row in rows(driver, "engines")] == [e["engine"] for e in by_pause]
    pick(driver, "filter", "problems")
    assert [row[0] for row in rows(driver, "engines")] == [made.engines[7]["engine"]]
    button = driver.find_element("css selector", "#engines td button")
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    detail = driver.find_element("css selector", "#engines tr.detail").text
    engine = made.engines[7]
    for words in (engine["digest"], engine["run"], engine["error"], "Attempts\n3", "Goal\n700",
                  "agent 0 on rollout-00"):  # fmt: skip
        assert words in detail
    made.step()
    made.fail(7, behind=3, error="still gone")
    ask(driver, lambda: text(driver, "f-version") == "701", "version 701")
    detail = driver.find_element("css selector", "#engines tr.detail").text
    assert "still gone" in detail and "Goal\n701" in detail, "it stays open and is kept up to date"
    button.click()
    assert driver.find_elements("css selector", "#engines tr.detail") == []


def test_phases_and_pauses_of_updates_are_drawn(driver, made, server):
    """The canvas has pixels in the colours of the phases in the records."""
    made.fail(0)
    opened(driver, server, 700)
    colours = driver.execute_script(
        "return Object.fromEntries(['c1', 'c2', 'c3', 'c4', 'c5'].map((name) => [name,"
        " getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()]))")

    def count(canvas, colour):
        return driver.execute_script("""
            const [id, hex] = arguments, canvas = document.getElementById(id);
            const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            let found = 0;
            for (let at = 0; at < data.length; at += 4) {
              if (data[at + 3] === 255 && wanted.every((c, k) => data[at + k] === c)) ++found;
            }
            return found;""", canvas, colours[colour])  # fmt: skip

    stage, apply = count("line", "c1"), count("line", "c3")
    assert stage > 5 * apply > 0 and count("line", "c2") > 0
    assert count("line", "c5") > 0, "the mark of the update that failed"
    assert count("pauses", "c3") > count("pauses", "c2") > 0 and count("pauses", "c1") == 0


# --- peers and failures --------------------------------------------------------------------------


def test_markup_in_names_is_shown_as_text(driver, made, server):
    for words in (HOSTILE, "x" * 10000, "\u202e", "__proto__", TAGGED):
        made.engines[len(words) % 5].update(engine=words, kind=words, status=words, error=words,
                                           proven=words, host=words)  # fmt: skip
        made.rollouts[0].update(id=words, digest=words)
        made.versions[-1]["most_changed"][3]["tensor"] = words
        made.versions[-1]["encoding"] = words
    made.versions[-1]["most_changed"][4]["tensor"] = made.engines[1]["engine"] = HOSTILE
    made.refusals = {HOSTILE: 3, "__proto__": 2, "y" * 10000: 1}
    status = made.status()
    status |= {"host": HOSTILE, "role": HOSTILE, "digest": HOSTILE, "run": HOSTILE}
    status["trainer"] = {"state": HOSTILE, "seen": HOSTILE}
    status["engines"] += [None, 7, {}, {"engine": {"a": 1}, "version": "x", "lag": [], "time": 3}]
    server.answer = lambda since: status
    browsers.viewport(driver, 360, 740)
    opened(driver, server, 700)
    pick(driver, "window", 60)
    for button in driver.find_elements("css selector", "td button")[:6]:
        driver.execute_script("arguments[0].click()", button)
    assert driver.execute_script("return [document.images.length, document.scripts.length,"
                                 " document.querySelectorAll('iframe, a, object').length]"
                                 ) == [0, 1, 0]  # fmt: skip
    body = driver.execute_script("return document.body.textContent + document.title")
    assert "<img src=x onerror=\"alert('a name')\">" in body
    assert "\u202e" not in body and "\\u202e" in body and "(10000 characters)" in body
    assert TAGGED not in body and "a\\ue0061" in body
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 360
    from selenium.common.exceptions import NoAlertPresentException

    with pytest.raises(NoAlertPresentException):
        driver.switch_to.alert.accept()
    assert driver.get_log("browser") == []


def test_a_lost_connection_is_never_shown_as_live(driver, made, server):
    opened(driver, server, 700)
    assert text(driver, "link").startswith("live")

    def stale():
        return "stale" in driver.find_element("css selector", "body").get_attribute("class")

    for broken, reason in ((503, "The server answers 503"), (401, "The server answers 401")):
        server.broken = broken
        ask(driver, stale, f"the failure by {broken}")
        assert re.match(r"Connection lost since \d\d:\d\d:\d\d", text(driver, "headline"))
        assert reason in text(driver, "problems") and "not live" in text(driver, "problems")
        assert text(driver, "link").startswith("lost since")
        assert driver.find_element("id", "verdict").get_attribute("class") == "is-bad"
        server.broken = None
        driver.find_element("id", "retry").click()
        until(lambda: text(driver, "link").startswith("live"), "the connection")
        assert not stale() and text(driver, "headline").startswith("All 12 engines")
    for answer in ("<html>", '{"schema": 2}', "[]", "null"):
        server.answer = lambda since, answer=answer: answer
        ask(driver, stale, answer)
        assert "The answer cannot be shown" in text(driver, "problems")
        server.answer = made.status
        driver.find_element("id", "retry").click()
        until(lambda: not stale(), "the connection")
    server.broken = "hang"  # then the clock advances by 7 s
    driver.execute_script("const now = Date.now; Date.now = () => now() + 7000")
    until(stale, "silence counts as lost")
    server.broken = None


def test_the_page_sends_fewer_requests_without_answers(driver, made, server):
    server.broken = 500
    # Every timer fires at once; the test records the page's delays.
    script = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": """
        window.waits = []; const later = window.setTimeout;
        window.setTimeout = (f, ms) => { waits.push(ms); return later(f, 20); };"""})  # fmt: skip
    driver.get(server.url)
    driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    waits = until(lambda: (w := driver.execute_script("return waits")) and w[6:] and w, "7 waits")
    assert waits[:7] == [2000, 4000, 8000, 16000, 30000, 30000, 30000]
    assert text(driver, "headline") == "No connection"
    server.broken = None
    until(lambda: text(driver, "f-version") == "700", "the connection")
    assert driver.execute_script("return waits")[-1] == 2000


# --- schemes and sizes ---------------------------------------------------------------------------


def test_light_dark_and_phone(driver, made, server):
    made.fail(3)
    opened(driver, server, 700)
    seen = {}
    for scheme in ("light", "dark"):
        browsers.scheme(driver, scheme)
        time.sleep(0.1)
        seen[scheme] = driver.execute_script(
            "return [getComputedStyle(document.body).backgroundColor,"
            " document.getElementById('density').toDataURL()]")  # fmt: skip
    assert seen["light"][0] == "rgb(244, 246, 248)" and seen["dark"][0] == "rgb(14, 18, 23)"
    assert seen["light"][1] != seen["dark"][1], "charts change with the scheme"
    for width in (360, 768, 1280, 2560):
        browsers.viewport(driver, width, 800)
        time.sleep(0.1)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        wide = driver.execute_script("return document.getElementById('bytes').clientWidth")
        drawn = driver.execute_script("return document.getElementById('bytes').width")
        assert 0.9 * wide <= drawn and wide < width


# --- the made-up run has the keys of a real one ---------------------------------------------------


def test_the_made_up_records_have_the_keys_of_real_ones(work):
    """Compares them with the documentation, and with the metrics of a real trainer and agent."""
    jobs.make_run(work / "run", np.random.default_rng(1), 2)
    job = jobs.Files(work, **{"metrics.file": work / "{role}.jsonl"})
    trainer = job.start_trainer("--replay", work / "run", "--rollouts", 0)
    assert jobs.finish(trainer).returncode == 0
    real = json.loads((work / "trainer.jsonl").read_text().splitlines()[0])
    made = MadeRun(engines=1, versions=1, rollouts=1)
    optional = {"most_changed", "compare_ms", "encode_ms", "send_ms", "seal_ms"}
    assert set(made.versions[0]) - optional == set(real) - optional
    page = (REPOSITORY / "docs/operate/metrics.md").read_text()
    documented = set(re.findall(r"`(\w+)`", page))
    for record in (made.versions[0], made.engines[0]):
        assert set(record) - optional <= documented
    rollout = re.search(r"OrderedJson to_json\(const RolloutRecord.*?\}\n",
                        (REPOSITORY / "formats/records.cpp").read_text(), re.S)[0]  # fmt: skip
    assert set(made.rollouts[0]) == set(re.findall(r'\{"(\w+)", ', rollout))
    status = (REPOSITORY / "plugin/observe/run_status.cpp").read_text()
    status = status[status.index("OrderedJson to_json(const RunStatus"):]
    keys = set(re.findall(r'(?:\{|json\[)"(\w+)"', status)) - {"seen"}
    assert set(made.status()) == keys - {"state"}


# --- the real server -----------------------------------------------------------------------------


@pytest.fixture
def processes():
    yield
    jobs.stop_started()


def test_the_pages_of_a_real_trainer_and_agent(driver, work, name, processes):  # noqa: F811
    jobs.need("status_server")
    jobs.make_run(work / "run", np.random.default_rng(3), 8)
    engines = [Engine(work / "run/step_000000") for _ in range(2)]
    host = checkpoint_host(work, name, ("vllm", engines[0]), ("sglang", engines[1]))
    ports = {"trainer": free_port(), "agent": free_port()}
    host.hold(8)
    agent = host.start_agent("--set", f"monitor.address={ports['agent']}")
    trainer = replay(host, work / "run", "--interval-ms", 900,
                     "--set", f"monitor.address={ports['trainer']}")  # fmt: skip

    def status(role):
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(url(role) + "status.json", timeout=60) as answer:
                return json.load(answer)
        return None

    def url(role):
        return f"http://127.0.0.1:{ports[role]}/"

    def receivers(status, role):
        if role == "trainer":
            return [[each["id"], str(each["version"])] for each in status["rollouts"]]
        return [[each["engine"], str(each["version"]), each["proven"], each["status"]]
                for each in status["engines"]]  # fmt: skip

    def shown(role):
        if role == "trainer":
            return [row[:2] for row in rows(driver, "rollouts")]
        return [[row[0], row[2], row[4], row[7]] for row in rows(driver, "engines")]

    def agrees(role):
        """Whether the page shows the server's answer, which may change in between."""
        driver.execute_script(ASK)
        time.sleep(0.1)
        now = status(role)
        newest = now["versions"][-1]["version"] if now["versions"] else 0
        return (now["version"] > 0 and receivers(now, role)
                and text(driver, "run") == f"run {now['run']}"
                and text(driver, "f-version") == str(now["version"])
                and text(driver, "f-trainer") == now["trainer"]["state"]
                and readout(driver, "bytes").startswith(f"Version {newest} ")
                and sorted(shown(role)) == sorted(receivers(now, role)))  # fmt: skip

    until(lambda: (status("trainer") or {}).get("version", 0) >= 2, "version 2", 120)
    until(lambda: status("agent"), "the agent's server", 120)
    for role in ("agent", "trainer"):
        driver.get(url(role))
        until(lambda role=role: agrees(role), f"the page of the {role}", 120)
        assert text(driver, "f-trainer") == "alive" or role == "agent"
        assert driver.get_log("browser") == [], "the server's policy allows all that the page does"
    host.go(8)
    assert jobs.finish(trainer).returncode == 0 and jobs.finish(agent).returncode == 0
    until(lambda: text(driver, "link").startswith("lost since"), "the end of the server")

"""Live figures in Firefox, which speaks WebDriver BiDi itself: the same numbers as in Python."""

import base64
import json
import re
import shutil
import subprocess
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from test_live import FIGURES, STRICT, plain, program, stored  # noqa: F401
from test_site import ROOT

from ntkcourse import live

websocket = pytest.importorskip("websocket")
pytestmark = [pytest.mark.browser, pytest.mark.soak]


class Firefox:
    """A browser at the other end of a socket."""

    def __init__(self, path, profile):
        command = [path, "--headless", "--remote-debugging-port=0", "--profile", str(profile)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for line in self.process.stderr:
            if found := re.search(r"WebDriver BiDi listening on (\S+)", line):
                break
        # nobody else reads what it has to say, and a full pipe would stop it
        self.drain = threading.Thread(target=self.process.stderr.read)
        self.drain.start()
        self.socket = websocket.create_connection(
            f"{found.group(1)}/session", timeout=120, suppress_origin=True
        )
        self.count, self.said = 0, []
        self.send("session.new", capabilities={})
        self.send("session.subscribe", events=["log.entryAdded"])
        self.tab = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def send(self, method, **params):
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("method") == "log.entryAdded":
                if answer["params"]["level"] == "error":
                    self.said.append(answer["params"]["text"])
            elif answer.get("id") == self.count:
                assert answer["type"] == "success", answer
                return answer["result"]

    def run(self, code):
        """The value of an expression, or of the promise that it is, by way of JSON."""
        result = self.send(
            "script.evaluate",
            expression=f"Promise.resolve({code}).then((v) => JSON.stringify(v) ?? 'null')",
            target={"context": self.tab},
            awaitPromise=True,
        )
        assert result["type"] == "success", result["exceptionDetails"]["text"]
        return json.loads(result["result"]["value"])

    def open(self, address, width=1000):
        size = {"width": width, "height": 900}
        self.send("browsingContext.setViewport", context=self.tab, viewport=size)
        self.send("browsingContext.navigate", context=self.tab, url=address, wait="complete")
        self.rest()

    def rest(self):
        """Wait until the figure has computed what it has to."""
        self.run(
            "new Promise((done) => { const look = () => {"
            " const l = document.querySelector('figure.live').live;"
            " if (l.programs && !l.asked && !l.dirty && !l.chasing) done(1);"
            " else setTimeout(look, 30); }; look(); })"
        )

    def press(self, key):
        down_up = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keys", "actions": down_up}]
        self.send("input.performActions", context=self.tab, actions=actions)

    def picture(self):
        made = self.send("browsingContext.captureScreenshot", context=self.tab)
        return base64.b64decode(made["data"])

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait(30)
        self.drain.join()
        self.process.stderr.close()


@pytest.fixture(scope="module")
def firefox(tmp_path_factory):
    path = shutil.which("firefox-esr") or shutil.which("firefox")
    if path is None:
        pytest.skip("NO FIREFOX: install firefox to run these tests")
    browser = Firefox(path, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


class Pages(BaseHTTPRequestHandler):
    """A page for each figure, under the strict policy."""

    def do_GET(self):
        name, _, kind = self.path[1:].partition(".")
        if name == "live" or kind == "css":
            text = (ROOT / "book/static" / self.path[1:]).read_text()
        elif kind == "js":
            text = program(name)
        else:
            given = f'data-live="{name}"'
            body = stored(name).replace(given, f'{given} data-program="{name}.js"')
            text = (
                '<!doctype html><html lang="en"><title>t</title><link rel="icon" href="data:,">'
                '<link rel="stylesheet" href="book.css"><body>'
                f'<div class="bd-content">{body}</div><script src="live.js"></script>'
            )
        kinds = {"js": "text/javascript", "css": "text/css"}
        self.send_response(200)
        self.send_header("content-type", f"{kinds.get(kind, 'text/html')}; charset=utf-8")
        self.send_header("content-security-policy", STRICT)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=partial(server.serve_forever, 0.05))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


RESULTS = """Object.fromEntries(
    Object.entries(document.querySelector('figure.live').live.results)
    .map(([k, v]) => [k, typeof v === 'object' ? Array.from(v) : [Number(v)]]))"""


@pytest.mark.parametrize("name", FIGURES)
def test_firefox_shows_what_python_shows(firefox, address, name):
    figure = FIGURES[name]
    firefox.said.clear()
    firefox.open(f"{address}/{name}")
    found = live.Session(figure).results(live.FRAMES if figure.time else 0)
    before = firefox.run(RESULTS)
    for k, v in before.items():
        np.testing.assert_allclose(v, np.ravel(found[k]), rtol=1e-6, atol=1e-6, err_msg=k)
    assert firefox.picture().startswith(b"\x89PNG")
    said = "document.querySelector('.handle').getAttribute('aria-valuetext')"
    first = firefox.run(said)
    firefox.run("document.querySelector('.handle').focus()")
    for _ in range(3):
        firefox.press("\ue014")  # the right arrow
    assert firefox.run(said) != first
    firefox.rest()
    after = firefox.run(RESULTS)
    assert any(not np.allclose(before[k], after[k], rtol=1e-4, atol=1e-9) for k in before)
    assert firefox.said == []

"""The operator's page in a real browser, on metrics that a real `ServiceMetrics` exports, in the browser's own time."""

from types import SimpleNamespace

import pytest
from playwright.sync_api import expect
from threeloops.product.service.observability import DASHBOARD_POLICY, ServiceMetrics, dashboard_page

pytestmark = pytest.mark.browser

NOTHING = dict.fromkeys(
    "running waiting paused blocks_free blocks_total preemptions prefix_tokens_asked prefix_tokens_hit".split(), 0
)


class Service:
    """What the page talks to. `fails` makes it answer 503."""

    def __init__(self, name="tiny"):
        self.name, self.now, self.fails, self.asked = name, 0.0, False, []
        self.restart()

    def restart(self):
        self.metrics = ServiceMetrics(self.name, clock=lambda: self.now)

    def answer(self, route):
        self.asked.append(route.request.url)
        if route.request.url == "http://service.test/dashboard":
            headers = {"Content-Security-Policy": DASHBOARD_POLICY}
            route.fulfill(body=dashboard_page(self.name), content_type="text/html", headers=headers)
        elif route.request.url == "http://service.test/metrics" and not self.fails:
            route.fulfill(body=self.metrics.text(), content_type="text/plain")
        else:
            route.fulfill(status=503, body="")

    def serve(self, ttft, gap, tokens=11):
        begin = self.now
        seen = self.metrics.started(prompt_tokens=50)
        self.now += ttft
        for number in range(tokens):
            self.now += gap if number else 0
            seen.token()
        seen.finished("stop")
        self.now = begin


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def page(chromium, service):
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
    page.clock.install(time=0)
    page.clock.pause_at(1)  # from here on time passes only in `go_on`
    page.route("**/*", service.answer)
    page.goto("http://service.test/dashboard")
    expect(page.locator(".chart")).to_have_count(8)
    yield page
    page.close()


def go_on(page, looks=1):
    """The page's time passes until it has looked so many times more, and drawn what it saw."""
    for _ in range(looks):
        page.clock.run_for(2000)
        expect(page.locator("#state")).to_contain_text(page.evaluate("new Date().toLocaleTimeString()"))


def tiles(page):
    names, values = page.locator(".tile dt").all_inner_texts(), page.locator(".tile dd").all_inner_texts()
    return dict(zip(names, values, strict=True))


def chart(page, title):
    return page.locator("section.chart").filter(has=page.get_by_role("heading", name=title, exact=True))


def wait_for_tile(page, name, value):
    """Numbers are drawn a moment after the answer has come."""
    tile = page.locator(".tile").filter(has=page.get_by_text(name, exact=True))
    expect(tile.locator("dd")).to_have_text(value)


def test_it_shows_what_the_service_does_and_asks_nobody_else(page, service):
    load = SimpleNamespace(**NOTHING | {"running": 5, "waiting": 1, "blocks_free": 30, "blocks_total": 120})
    service.metrics.engine(load, queued=3)
    for _ in range(95):
        service.serve(ttft=0.03, gap=0.02)
    for _ in range(5):
        service.serve(ttft=0.9, gap=0.02)
    for _ in range(20):
        service.metrics.refused("overloaded")
    go_on(page)
    wait_for_tile(page, "running", "5")
    wait_for_tile(page, "waiting", "4")
    wait_for_tile(page, "cache in use", "75 %")
    wait_for_tile(page, "TTFT, p95", "40 ms")  # the end of the bucket from 20 to 40 ms, which holds 95 of 100
    found = tiles(page)
    assert found["tokens"] == "550 /s"
    assert (found["ended"], found["refused"]) == ("50 /s", "10 /s")
    assert page.locator(".tile dd.alarm").inner_text() == "10 /s"
    assert "overloaded 10 /s" in chart(page, "Refused").inner_text()
    assert "p99 950 ms" in chart(page, "Time to first token").inner_text()
    assert all(url.startswith("http://service.test/") for url in service.asked)
    assert page.faults == []


def test_percentiles_are_of_the_latest_seconds_and_a_lull_is_a_gap(page, service):
    for _ in range(100):
        service.serve(ttft=5, gap=0.01)
    go_on(page)
    wait_for_tile(page, "TTFT, p95", "4.88 s")  # 95% of the way through the bucket from 2.5 to 5 s
    go_on(page, looks=16)
    wait_for_tile(page, "TTFT, p95", "–")
    assert chart(page, "Time to first token").locator("path").first.get_attribute("d") != ""


def test_a_restart_of_the_service_is_no_negative_rate(page, service):
    service.serve(ttft=0.1, gap=0.01, tokens=1000)
    go_on(page)
    wait_for_tile(page, "tokens", "500 /s")
    service.restart()
    service.serve(ttft=0.1, gap=0.01, tokens=41)
    go_on(page)
    wait_for_tile(page, "tokens", "10.3 /s")  # 41 tokens in the 4 s since the first look


def test_it_says_when_the_service_does_not_answer_and_goes_on_when_it_does(page, service):
    service.fails = True
    go_on(page)
    expect(page.locator("#state")).to_contain_text("/metrics answered 503")
    expect(page.locator("#state")).to_have_class("bad")
    service.fails = False
    go_on(page)
    expect(page.locator("#state")).to_contain_text("as of")
    expect(page.locator("#state")).not_to_have_class("bad")


def test_a_models_name_is_text(chromium):
    service = Service("<img src=x onerror=alert(1)>")
    page = chromium.new_page()
    page.route("**/*", service.answer)
    page.goto("http://service.test/dashboard")
    assert page.locator("h1").inner_text() == service.name
    assert page.locator("h1 img").count() == 0
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_window_and_can_be_read(chromium, service, scheme, width):
    page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.route("**/*", service.answer)
    page.goto("http://service.test/dashboard")
    expect(page.locator(".chart")).to_have_count(8)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CONTRAST) >= 4.5
    page.close()


CONTRAST = """() => {
    const light = colour => {
        const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(c => c / 255)
            .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const card = light(getComputedStyle(document.querySelector('.tile')).backgroundColor);
    const texts = document.querySelectorAll(".tile dt, .tile dd, .legend, .chart h2, .chart text");
    return Math.min(...[...texts].map(text => {
        const style = getComputedStyle(text), ink = light(text.closest("svg") ? style.fill : style.color);
        return (Math.max(ink, card) + 0.05) / (Math.min(ink, card) + 0.05);
    }));
}"""
"""The least contrast of a text to its card, as the Web Content Accessibility Guidelines (WCAG 2.2) define it."""

"""A real Chromium that talks to loopback only."""

import os
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def chromium():
    """A browser that talks to loopback only.

    Not for the session: while Playwright is open its event loop counts as running in this thread, and no other test
    could use asyncio.
    """
    if CHROMIUM is None:
        message = "Chromium is not installed (Debian: apt install chromium)"
        pytest.fail(message) if os.environ.get("THREELOOPS_CI") else pytest.skip(message)
    from playwright.sync_api import sync_playwright

    flags = "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*flags.split(), "--disable-sync"], chromium_sandbox=os.geteuid() != 0
        )
        yield browser
        browser.close()

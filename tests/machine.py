"""What the tests need of a machine beyond Python: installed if that is possible."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def apt_install(package: str) -> None:
    """Install a Debian package if this user may; a fresh machine may have an old list of them."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return

    def apt(*arguments: str) -> int:
        return subprocess.run(["apt-get", *arguments], capture_output=True, timeout=900).returncode

    with (Path(tempfile.gettempdir()) / "ntkcourse-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # apt does not wait for another worker's
        if apt("install", "-y", package):
            apt("update")
            apt("install", "-y", package)


def find_chromium() -> str | None:
    """A Chromium on the path, or one that Playwright or Debian can install, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    if found := next(filter(None, map(shutil.which, names)), None):
        return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
    if not own.exists():
        download = [sys.executable, "-m", "playwright", "install", "chromium"]
        subprocess.run(download, capture_output=True, timeout=900)
    if not own.exists():
        apt_install("chromium")
    return shutil.which("chromium") or (str(own) if own.exists() else None)

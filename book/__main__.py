"""Build the site from the stored notebooks: `python -m book`."""

from pathlib import Path

from jupyter_book.cli.main import main

ROOT = Path(__file__).resolve().parent.parent

# Warnings are errors, and references that lead nowhere are warnings.
main(["build", str(ROOT), "-W", "-n", "--keep-going", "-q"])

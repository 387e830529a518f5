"""Build the site from the stored notebooks: `python -m book`."""

from jupyter_book.cli.main import main

from book import lessons
from book.notebooks import ROOT

print(lessons.report())
# Warnings are errors, and references that lead nowhere are warnings.
main(["build", str(ROOT), "-W", "-n", "--keep-going", "-q"])

"""Build the site from the stored notebooks: `python -m book [--out FOLDER]`.

The pages are made in a folder of their own and take the place of the old site in one step, when
all of them are there. Two builds into the same folder wait for each other.
"""

import argparse
import contextlib
import fcntl
import io
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep others out of a folder; the lock ends with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another build into {folder} is under way: waiting", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(out: Path) -> None:
    """Make the pages in out/work and move them to out/html."""
    from jupyter_book.cli.main import main

    from book import lessons

    print(lessons.report())
    work, site = out / "work", out / "html"
    new, old = out / "html.new", out / "html.old"
    busy = work / ".under-way"
    # What an interrupted build leaves looks finished to Sphinx, page by page.
    for left in [new, old, *([work] if busy.exists() else [])]:
        shutil.rmtree(left, ignore_errors=True)
    work.mkdir(exist_ok=True)
    busy.touch()
    # Warnings are errors, and references that lead nowhere are warnings.
    options = ["-W", "-n", "--keep-going", "-q", "--path-output", str(work)]
    print("building the pages", flush=True)
    # Faults come on the other stream; what this one says ends with the address of the wrong folder.
    with contextlib.redirect_stdout(io.StringIO()):
        main(["build", str(ROOT), *options], standalone_mode=False)
    shutil.copytree(work / "_build/html", new)
    busy.unlink()
    if site.exists():
        os.replace(site, old)
    os.replace(new, site)
    shutil.rmtree(old, ignore_errors=True)


def command(arguments: list[str] | None = None) -> int:
    """The command line; the result is the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m book", description="build the site from the stored notebooks"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "_build", help="default: %(default)s")
    out = parser.parse_args(arguments).out.resolve()
    try:
        with alone(out):
            build(out)
    except OSError as error:
        print(f"python -m book: {error}; {out / 'html'} is as it was", file=sys.stderr)
        return 2
    except RuntimeError as error:  # Jupyter Book's own, after it has printed a trace
        print(
            f"python -m book: {error.__cause__ or error}; {out / 'html'} is as it was",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"interrupted; {out / 'html'} is as it was", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(command())

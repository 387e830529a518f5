"""Every test runs with shapes checked at run time and with JAX's strictest promotion rules."""

import os
import shutil
import warnings

# Thousands of small programs, each run a few times: let XLA optimise little. That takes less than
# half of the time. With OPTIMISED=1 programs are as users have them: see Makefile.
if "OPTIMISED" not in os.environ and "optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + (
        " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
        " --xla_cpu_use_fusion_emitters=false"
    )

import jax
import lines
import machine
import pytest
from beartype import BeartypeConf, beartype
from jaxtyping import config, install_import_hook

typecheck = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int passes where float stands
if "COVERAGE" in os.environ:  # `make test` asks which lines of the package ran
    lines.install(f"{__name__}.typecheck")
else:
    install_import_hook("ntkcourse", f"{__name__}.typecheck")

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_sessionfinish():
    if "COVERAGE" in os.environ:
        lines.write()


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Each compiled program holds maps of memory, of which a process may have 65,530: beyond that
    it ends by a segmentation fault."""
    yield
    jax.clear_caches()


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return jax.numpy.dtype(request.param)


@pytest.fixture
def user():
    """The package as a user has it: without run-time shape checks, so that its own errors show."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


def missing(reason: str):
    """Skip what this machine cannot run, aloud; in CI that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    warnings.warn(reason, pytest.PytestWarning, stacklevel=2)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def isolation():
    """Bubblewrap, which marks homework in safety; installed if that is possible."""
    from grading import sandbox

    if not shutil.which("bwrap"):
        machine.apt_install("bubblewrap")
    try:
        sandbox.check()
    except sandbox.SandboxError as error:
        missing(f"NO SANDBOX: homework was not marked; {error}")


@pytest.fixture(scope="module")
def browser():
    """A browser for the tests of a file: in another file its event loop would be in the way."""
    from playwright.sync_api import sync_playwright

    path = machine.find_chromium()
    if path is None:
        missing("NO BROWSER: pages were not opened; install chromium to run these tests")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=machine.CHROMIUM_FLAGS)
        yield chromium
        chromium.close()

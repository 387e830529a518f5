"""Every test runs with shapes checked at run time and with JAX's strictest promotion rules."""

import jax
import pytest
from beartype import BeartypeConf, beartype
from jaxtyping import config, install_import_hook

typecheck = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int passes where float stands
install_import_hook("ntkcourse", f"{__name__}.typecheck")

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return jax.numpy.dtype(request.param)


@pytest.fixture
def user():
    """The package as a user has it: without run-time shape checks, so that its own errors show."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)

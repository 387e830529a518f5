"""Kernels, wide networks and particle flows: the code behind the course."""

__version__ = "0.1.0"

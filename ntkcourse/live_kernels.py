"""Live figures of kernels, random features and depth."""

FIGURES = {}

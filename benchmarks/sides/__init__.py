"""One module per side of a comparison, one function per case, named as in `problems.CASES`.

Each function takes the inputs of the case and its size, does what a user would do once, and
returns the call that is timed.
"""

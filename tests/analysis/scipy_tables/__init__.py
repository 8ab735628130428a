"""Recomputations of the tables of `gradtool analyze` with NumPy and SciPy: one module for each kind of table."""

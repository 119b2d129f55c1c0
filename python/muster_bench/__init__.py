"""The benchmark platform of muster: runs, compares, reports."""

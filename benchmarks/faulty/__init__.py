"""Faults that are put into saving, loading and resuming; `benchmarks/faults.py` counts what becomes of them."""

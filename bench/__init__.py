"""Benchmarks of the cost of a component: `make bench`, or `python -m bench --help`.

Belongs here: workloads, loops to compare with, and measuring real processes from outside. Does not belong here: anything the product
imports, and asserting times (`tests/broker/test_bench_smoke.py` only asserts that the figures exist and the outputs are right).
"""

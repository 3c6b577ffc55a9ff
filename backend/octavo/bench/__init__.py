"""Benchmarks: workloads, how they are run, and what is reported."""

"""Measurements: each writes rows to `benchmarks/results/`, with machine, versions and commit. `make bench` runs all."""

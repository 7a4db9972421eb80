"""The paper's experiments, one call each: rows from small configs, runs that can be stopped, a page with the numbers.

An experiment is data (`experiments/NAME/experiment.toml` and a config a row); `runner` makes its runs, `summary` its
numbers, `page` what is read. The trainer knows nothing of it.
"""

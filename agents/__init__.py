"""Trained schedulers: run from a checkout, not part of the package.

`python -m agents.train --help` trains one, `python -m agents.evaluate --help` scores one that was trained, and
`minimal_sb3.py` is the shortest program that trains, to be copied.
"""

"""Pictures of a running cluster: `scene` reads a simulation, `text` and `picture` show what it read.

`picture` needs matplotlib and Pillow and is slow to import; `scene` and `text` need neither.
"""

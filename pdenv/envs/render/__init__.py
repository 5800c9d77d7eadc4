"""A running cluster as text, as a picture and in a window.

`look` reads a simulation into a `Scene` without changing it; `to_text`, `Picture` and `Window` show the scene.
Importing this package imports matplotlib, so that environments should do it when they first render.
"""

from pdenv.envs.render.picture import Picture, Window
from pdenv.envs.render.scene import Scene, look
from pdenv.envs.render.text import to_text

__all__ = ["Picture", "Scene", "Window", "look", "to_text"]

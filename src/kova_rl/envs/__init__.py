"""The paper's environments, registered with Gymnasium on import.

=====================  ==========================================================================
``kova/Maze4-v0``      the 4x4 maze of the motivating example (Fig. 1)
``kova/Maze10-v0``     the 10x10 maze (Fig. 2)
``kova/Maze-v0``       your own (``maze="1011\\n1110\\n..."``), or a random one (``size=``, ``layout_seed=``)
=====================  ==========================================================================

Example:
    >>> import gymnasium, kova_rl.envs
    >>> env = gymnasium.make("kova/Maze4-v0")
    >>> observation, info = env.reset(seed=0)
    >>> observation.shape, info["action_mask"].shape
    ((16,), (4,))
"""

import gymnasium

from kova_rl.envs.layout import MAZE4, MAZE10, Layout
from kova_rl.envs.maze import MazeEnv

__all__ = ["MAZE4", "MAZE10", "Layout", "MazeEnv"]

_ENTRY = "kova_rl.envs.maze:MazeEnv"
for _name, _kwargs in (("Maze4", {"maze": MAZE4}), ("Maze10", {"maze": MAZE10}), ("Maze", {})):
    if f"kova/{_name}-v0" not in gymnasium.registry:
        gymnasium.register(id=f"kova/{_name}-v0", entry_point=_ENTRY, kwargs=_kwargs)

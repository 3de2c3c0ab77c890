"""The paper's environments, and tasks that change on the way, registered with Gymnasium on import.

===============================  ==========================================================================
``kova/Maze4-v0``                the 4x4 maze of the motivating example (Fig. 1)
``kova/Maze10-v0``               the 10x10 maze (Fig. 2)
``kova/Maze-v0``                 your own (``maze="11\\n01"``), or a random one (``size=``, ``layout_seed=``)
``kova/ChangingHopper-v0``       ``Hopper-v5``, whose floor becomes slippery (needs MuJoCo)
``kova/ChangingHalfCheetah-v0``  ``HalfCheetah-v5``, whose motors weaken (needs MuJoCo)
===============================  ==========================================================================

Example:
    >>> import gymnasium, kova_rl.envs
    >>> env = gymnasium.make("kova/Maze4-v0")
    >>> observation, info = env.reset(seed=0)
    >>> observation.shape, info["action_mask"].shape
    ((16,), (4,))
"""

import gymnasium

from kova_rl.envs.changing import ChangingPhysics
from kova_rl.envs.layout import MAZE4, MAZE10, Layout
from kova_rl.envs.maze import MazeEnv
from kova_rl.envs.physics import Change

__all__ = ["MAZE4", "MAZE10", "Change", "ChangingPhysics", "Layout", "MazeEnv"]

_ENTRY = "kova_rl.envs.maze:MazeEnv"
for _name, _kwargs in (("Maze4", {"maze": MAZE4}), ("Maze10", {"maze": MAZE10}), ("Maze", {})):
    if f"kova/{_name}-v0" not in gymnasium.registry:
        gymnasium.register(id=f"kova/{_name}-v0", entry_point=_ENTRY, kwargs=_kwargs)

for _task, _change in (("Hopper", {"friction": 0.1}), ("HalfCheetah", {"motors": 0.5})):
    if f"kova/Changing{_task}-v0" not in gymnasium.registry:
        gymnasium.register(
            id=f"kova/Changing{_task}-v0",
            entry_point="kova_rl.envs.changing:changing_task",
            max_episode_steps=1_000,
            kwargs={"task": f"{_task}-v5", "at": 150_000, **_change},
        )

"""The vanilla policy gradient with a fitted critic: `python examples/vanilla_pg.py`, or with `--critic adam`.

One step of the policy a rollout, and a critic that goes through the rollout until it has fitted it: where a
better critic should show. A2C of Stable-Baselines3 has the policy's step, and the critic's loop is
set beside it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import tyro
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from kova_rl.sb3 import KovaA2C


@dataclass
class Args:
    env: str = "Hopper-v5"
    """Any Gymnasium environment."""
    critic: Literal["adam", "kova"] = "kova"
    """What learns the value function."""
    steps: int = 60_000
    """Environment steps, over all environments."""
    seed: int = 1
    envs: int = 8
    """Environments that run side by side."""
    horizon: int = 64
    """Steps of each environment in a rollout."""
    lr: float = 3e-3
    """Of the policy."""
    kova_passes: int = 3
    """Of the critic through a rollout, with Kova."""
    adam_passes: int = 20
    """The same with Adam."""
    adam_lr: float = 1e-3
    """Of the critic with Adam. Kova needs none."""


def main(args: Args) -> float:
    """Train, and return the mean return of the last 100 episodes."""
    if args.critic == "kova":
        critic = {"kova": {"value_passes": args.kova_passes, "value_batch": 64}}
    else:
        fitted = {"value_passes": args.adam_passes, "value_batch": 64, "value_lr": args.adam_lr}
        critic = {"kova": None, "value": fitted}
    env = VecNormalize(make_vec_env(args.env, args.envs, seed=args.seed))
    model = KovaA2C(
        *("MlpPolicy", env, args.lr, args.horizon),
        gae_lambda=0.95,
        use_rms_prop=False,
        normalize_advantage=True,
        seed=args.seed,
        device="cpu",
        **critic,
    )
    began = time.process_time()
    model.learn(args.steps)
    found = float(np.mean([episode["r"] for episode in model.ep_info_buffer or ()] or [np.nan]))
    print(f"{args.env}, {args.critic}: mean return of the last episodes {found:,.1f}")
    print(f"{time.process_time() - began:.0f} processor seconds")
    if args.critic == "kova":
        belief = model.value_distribution(env.reset()[:1])
        print(f"value of a start state: {float(belief.mean):.2f} +- {float(belief.std):.2f} (normalised)")
    env.close()
    return found


if __name__ == "__main__":
    main(tyro.cli(Args))

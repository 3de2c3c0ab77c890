"""One segment of a training run: a model from plain settings, its learning, and its state as bytes."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import set_random_seed

from kova_rl.atomic import opened
from kova_rl.sb3.files import state as states
from kova_rl.sb3.session_model import Settings, build, environments
from kova_rl.sb3.session_recorder import Captured, Record, Recorder, SegmentOver

__all__ = ["Session", "Settings"]


class Session:
    """A model that is new, or that goes on from a state, with everything random in it seeded anew.

    Args:
        settings: What it is made of.
        seed: Of everything random from here on: a state needs to hold no generators.
        state: What :meth:`state` returned; None starts from nothing.

    Raises:
        ValueError: A setting that the algorithm or the environment does not take.
    """

    def __init__(self, settings: Settings, seed: int, state: bytes | None = None) -> None:
        set_random_seed(seed)
        self.env = environments(settings)
        try:
            self.model = build(settings, self.env)
            self.seconds, self.processor, self._episodes = 0.0, 0.0, 0
            if state is not None:
                extra = states.restore(self.model, state)
                self.seconds, self.processor = extra["seconds"], extra["processor"]
                self._episodes = extra["episodes"]
            if self.env.has_attr("start_at"):  # a world that changes with its steps, which each copy counts
                self.env.env_method("start_at", self.steps // self.env.num_envs)
            set_random_seed(seed)
            self.env.seed(seed)
            self.env.action_space.seed(seed)
            self.model.action_space.seed(seed)
        except BaseException:
            self.env.close()
            raise

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return self.model.num_timesteps

    @property
    def rollout(self) -> int:
        """A segment ends with a whole number of these steps."""
        if isinstance(self.model, OnPolicyAlgorithm):
            return self.model.n_steps * self.model.n_envs
        frequency = getattr(self.model.train_freq, "frequency", 1)  # type: ignore[attr-defined]
        return int(frequency) * self.model.n_envs

    @property
    def episodes(self) -> int:
        """Episodes that have ended so far."""
        return self._episodes + sum(len(done) for done in self.env.env_method("get_episode_rewards"))

    def learn(self, until: int, total: int, every: int, record: Callable[[Record], None]) -> None:
        """Learn up to the step ``until`` of ``total``, with schedules that span the total.

        Args:
            until: The segment's last step.
            total: The run's last step.
            every: Steps between two records.
            record: Called with each record.
        """
        captured = Captured()
        self.model.set_logger(Logger(folder=None, output_formats=[captured]))
        clock, processor = self.seconds - time.perf_counter(), self.processor - time.process_time()

        def note_times() -> None:
            self.seconds, self.processor = clock + time.perf_counter(), processor + time.process_time()

        def tell() -> None:
            note_times()
            self.model.dump_logs()
            returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            record(
                {
                    "step": self.steps,
                    "seconds": round(self.seconds, 3),
                    "processor": round(self.processor, 3),
                    "return": float(sum(returns) / len(returns)) if returns else None,
                    "episodes": self.episodes,
                    **captured.take(),
                }
            )

        self.model._last_obs = None  # reset the environments
        recorder = Recorder(until, every, tell)
        left = total - self.steps
        with contextlib.suppress(SegmentOver):
            self.model.learn(left, recorder, log_interval=None, reset_num_timesteps=False)  # type: ignore[arg-type]
        note_times()

    def state(self) -> bytes:
        """All that the next segment starts from, to the bit."""
        extra = {"seconds": self.seconds, "processor": self.processor, "episodes": self.episodes}
        return states.pack(self.model, extra)

    def fingerprint(self) -> str:
        """A hash of the policy's and the critic's weights."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.policy.state_dict().items()):
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """The model as a file that its class loads, whole or not at all."""
        with opened(path) as file:
            self.model.save(file)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the environments."""
        self.env.close()

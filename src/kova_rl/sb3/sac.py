"""SAC with a filtered critic: the paper's form, with a V network, and today's, without."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.utils import get_parameters_by_name, polyak_update
from torch import Tensor
from torch.nn.functional import mse_loss

from kova_rl.filter.checks import check_choice
from kova_rl.head import Solution
from kova_rl.posterior import Belief
from kova_rl.sb3.critic import last_linear, release
from kova_rl.sb3.exploration import Draws, Exploration, check_exploration, check_posterior
from kova_rl.sb3.guard import check_batch
from kova_rl.sb3.off_policy import Exploring, FilteredQ, bootstrapped, flat, lowest, repeated, step_actor
from kova_rl.sb3.state_value import StateValue

__all__ = ["KovaSAC"]

DRAWS = 16
"""Of the policy's actions, over which Q is averaged for V's error bars."""


class KovaSAC(Exploring, FilteredQ, SAC):
    """Stable-Baselines3's ``SAC`` whose critic is tracked by Kalman filters.

    With a V network, as in the paper: ``V(s) = E[min Q(s, a) - alpha log pi(a|s)]`` and
    ``Q(s, a) = r + gamma V(s'; theta')``. The released code filters V alone, and so does this by default.

    Args:
        value_network: Whether there is a V network and its target; False is the host's SAC.
        filtered: ``"v"``, ``"q"`` (both Q networks, one filter each) or ``"both"``; None is ``"v"`` with a V
            network and ``"q"`` without. What is not filtered keeps the host's optimizer.
        exploration: :class:`~kova_rl.sb3.Thompson` or :class:`~kova_rl.sb3.Optimism` over draws of the
            policy, where Q is filtered; None is the policy alone.
        kova: :class:`~kova_rl.sb3.KovaSettings`, or a dict of their fields; None keeps the host's optimizer.
            All other arguments are the host's.

    ``value_distribution(obs)`` is of V where V is filtered, else of Q at the policy's own action;
    ``value_distribution(obs, actions)`` is of Q, by the network that thinks less of the action.

    Example:
        >>> model = KovaSAC("MlpPolicy", "Pendulum-v1", seed=0, buffer_size=1000, batch_size=32).learn(150)
        >>> model.value_distribution(model.get_env().reset()).std.shape
        torch.Size([1])
    """

    value_net: StateValue
    value_net_target: StateValue
    value_optimizer: torch.optim.Optimizer

    def __init__(
        self,
        *args: Any,
        value_network: bool = True,
        filtered: Literal["v", "q", "both"] | None = None,
        exploration: Exploration | None = None,
        **kwargs: Any,
    ) -> None:
        chosen = filtered or ("v" if value_network else "q")
        check_choice("filtered", chosen, ("v", "q", "both"))
        if not value_network and chosen != "q":
            raise ValueError(
                f"filtered={chosen!r} needs a V network: pass value_network=True or filtered='q'"
            )
        self.value_network, self.filtered = value_network, chosen
        uses_q = kwargs.get("kova", {}) is not None and chosen != "v"
        self.exploration = check_exploration(exploration, uses_q)
        if exploration is not None and kwargs.get("use_sde"):
            raise ValueError(
                "exploration compares draws of the policy, and with use_sde=True all are one: leave "
                "one of the two out"
            )
        self._draws = Draws()
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.value_network:
            self._add_value_network()
        if self.kova is None:
            return
        if self.filtered in ("v", "both"):
            module = self.value_net if self.kova.layers == "all" else last_linear(self.value_net)
            self._add_filter("v", module)
            release(self.value_optimizer, module.parameters())
        if self.filtered in ("q", "both"):
            self._add_q_filters()
            check_posterior(self.exploration, self._q_filters()[0])

    def _add_value_network(self) -> None:
        """V and its target are parts of the policy, so that they are saved and moved with it."""
        policy: Any = self.policy
        self.value_net = policy.value_net = StateValue(policy).to(self.device)
        self.value_net_target = policy.value_net_target = StateValue(policy).to(self.device)
        self.value_net_target.load_state_dict(self.value_net.state_dict())
        self.value_net_target.set_training_mode(False)
        self.value_optimizer = policy.optimizer_class(
            self.value_net.parameters(), lr=self.lr_schedule(1), **policy.optimizer_kwargs
        )

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        self._set_training_mode(True)
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        optimizers += [self.value_optimizer] if self.value_network else []
        optimizers += [] if self.ent_coef_optimizer is None else [self.ent_coef_optimizer]
        self._update_learning_rate(optimizers)
        seen: dict[str, list[float]] = {}
        for gradient_step in range(gradient_steps):
            assert self.replay_buffer is not None
            data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            check_batch(data)
            for name, value in self._learn(data).items():
                seen.setdefault(name, []).append(value)
            if gradient_step % self.target_update_interval == 0:
                self._update_targets()
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, values in seen.items():
            self.logger.record(f"train/{name}", np.mean(values))

    def _learn(self, data: Any) -> dict[str, float]:
        """One gradient step of everything, in the host's order; gives what is to be logged."""
        if self.use_sde:
            self.actor.reset_noise()
        actions, log_prob = self.actor.action_log_prob(data.observations)
        log_prob = log_prob.reshape(-1, 1)
        ent_coef, seen = self._learn_ent_coef(log_prob)
        seen["entropy"] = -log_prob.detach().mean().item()
        seen["critic_loss"] = self._learn_q(data, self._q_targets(data, ent_coef), factor=0.5)

        q = torch.cat(self.critic(data.observations, actions), dim=1).min(dim=1, keepdim=True).values
        if self.value_network:
            seen["v_loss"] = self._learn_v(data, (q - ent_coef * log_prob).detach().flatten())
        actor_loss = (ent_coef * log_prob - q).mean()
        seen["actor_loss"] = actor_loss.item()
        step_actor(actor_loss, self.actor.optimizer)
        return seen

    def _learn_ent_coef(self, log_prob: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The entropy coefficient of this step, and one step of its optimizer if it is tuned."""
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            return self.ent_coef_tensor, {"ent_coef": self.ent_coef_tensor.item()}
        ent_coef = torch.exp(self.log_ent_coef.detach())
        assert isinstance(self.target_entropy, float)
        loss = -(self.log_ent_coef * (log_prob + self.target_entropy).detach()).mean()
        self.ent_coef_optimizer.zero_grad()
        loss.backward()
        self.ent_coef_optimizer.step()
        return ent_coef, {"ent_coef": ent_coef.item(), "ent_coef_loss": loss.item()}

    @torch.no_grad()
    def _q_targets(self, data: Any, ent_coef: Tensor) -> Tensor:
        """``r + gamma V(s'; theta')``, N x 1, with the host's estimate of V where there is no V network."""
        if self.value_network:
            next_values = self.value_net_target(data.next_observations).reshape(-1, 1)
        else:
            next_actions, next_log_prob = self.actor.action_log_prob(data.next_observations)
            next_q = torch.cat(self.critic_target(data.next_observations, next_actions), dim=1)
            next_values = next_q.min(dim=1, keepdim=True).values - ent_coef * next_log_prob.reshape(-1, 1)
        return bootstrapped(data, next_values, self.gamma)

    def _learn_v(self, data: Any, targets: Tensor) -> float:
        """V's step: half the squared error for what the host's optimizer keeps, the filter for the rest."""
        value_net = self.value_net
        filtered = hasattr(self.filters, "v")
        loss = 0.0
        if not filtered or (self.kova is not None and self.kova.layers == "last"):
            value_net.zero_grad()
            values = value_net(data.observations)
            self._note("v", values, targets)
            value_loss = 0.5 * mse_loss(values, targets)
            loss = value_loss.item()
            value_loss.backward()
            self.value_optimizer.step()
        if filtered:
            self._filter("v", lambda: value_net(data.observations), targets)
            loss = 0.5 * self._diagnostics["v"].last_loss
        return loss

    def _update_targets(self) -> None:
        """The host's slow targets, and V's."""
        if self.value_network:
            online, target = self.value_net, self.value_net_target
            polyak_update(online.parameters(), target.parameters(), self.tau)
            kept, slow = (get_parameters_by_name(network, ["running_"]) for network in (online, target))
            polyak_update(kept, slow, 1.0)
        polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
        polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)

    def _explore(self, obs: Any, exploration: Exploration) -> np.ndarray:
        count = exploration.candidates
        with torch.no_grad():
            rows = repeated(obs, count)
            actions = self.actor(rows)
            inputs = self._q_inputs(rows, actions)
        seed = self._draws.seed(self)
        scores = torch.stack(
            [
                exploration.scores(kova, partial(flat, network, inputs), seed + index)
                for index, (kova, network) in enumerate(self._q_pairs())
            ]
        ).amin(0)
        best = scores.reshape(-1, count).argmax(1)
        chosen = actions.reshape(-1, count, actions.shape[-1])[torch.arange(len(best)), best]
        shaped = chosen.cpu().numpy().reshape(-1, *self.action_space.shape)  # type: ignore[misc]
        return self.policy.unscale_action(shaped)

    def _set_training_mode(self, mode: bool) -> None:
        """The host's, which does not know of V."""
        self.policy.set_training_mode(mode)
        if self.value_network:
            self.value_net.set_training_mode(mode)

    def _belief(self, obs: Any, actions: Tensor | None) -> Belief:
        self._set_training_mode(False)
        if actions is None and hasattr(self.filters, "v"):
            return self._filter_of("v").posterior(lambda: self.value_net(obs))
        if not self._q_filters():
            raise ValueError(
                "only V is filtered, which has no actions: leave them out, or pass filtered='both'"
            )
        own = self.actor(obs, deterministic=True) if actions is None else self._scaled(actions)
        return self._q_belief(obs, own)

    def _policy_actions(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Drawn ones, with the entropy's bonus."""
        actions, log_prob = self.actor.action_log_prob(obs)
        return actions, -self._alpha() * log_prob.flatten().double()

    def _alpha(self) -> float:
        if self.log_ent_coef is None:
            return float(self.ent_coef_tensor)
        return float(self.log_ent_coef.detach().exp())

    def _judged(self, solutions: list[Solution], obs: Any, actions: Tensor | None) -> Belief:
        """V is Q, less what the entropy is worth, over draws of the policy."""
        if actions is not None:
            return super()._judged(solutions, obs, actions)
        if not hasattr(self.filters, "v"):
            inputs = self._q_inputs(obs, self.actor(obs, deterministic=True))
            pairs = zip(solutions, self._q_heads(), strict=True)
            return lowest([solution.belief(head(inputs)) for solution, head in pairs])
        rows = repeated(obs, DRAWS)
        with torch.random.fork_rng(devices=[]):
            drawn, bonus = self._policy_actions(rows)
        inputs, worth = self._q_inputs(rows, drawn), bonus.reshape(-1, DRAWS).mean(1)
        found = []
        for solution, head in zip(solutions, self._q_heads(), strict=True):
            features = head(inputs)
            belief = solution.belief(features.reshape(-1, DRAWS, features.shape[1]).mean(1))
            found.append(replace(belief, mean=belief.mean + worth))
        return lowest(found)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        modules, variables = super()._get_torch_save_params()
        return [*modules, *(["value_optimizer"] if self.value_network else [])], variables

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "value_net", "value_net_target"]

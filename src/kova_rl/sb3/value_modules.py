"""Which part of a policy is its critic."""

from __future__ import annotations

import copy

import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from kova_rl.sb3.critic import refuse_other_layers

__all__ = ["value_modules"]


def value_modules(policy: ActorCriticPolicy, layers: str) -> tuple[nn.Module | None, list[nn.Parameter]]:
    """The critic, its last layer, or nothing, and the critic's own weights outside of that.

    Args:
        policy: Any policy with ``predict_values`` and ``get_distribution``.
        layers: "all", "last" or "none".

    Raises:
        ValueError: All layers are asked for, and some have weights that the policy uses too.
    """
    value, action = _reached(policy)
    own = [p for p in policy.parameters() if id(p) in value - action]
    if layers == "none":
        return None, own
    if layers == "last":
        head = {id(p) for p in policy.value_net.parameters()}
        return policy.value_net, [p for p in own if id(p) not in head]
    parts = {
        name: module
        for name, module in policy.named_modules()
        if any(id(p) in value for p in module.parameters(recurse=False))
    }
    found = nn.ModuleDict({name.replace(".", "_"): module for name, module in parts.items()})
    refuse_other_layers(found)
    for name, module in parts.items():
        if any(id(p) in action for p in module.parameters(recurse=False)):
            raise ValueError(
                f"policy and value share the weights of {name}, which can't follow a filter and the policy's "
                "gradient at once: pass policy_kwargs=dict(share_features_extractor=False) if it is in the "
                "features extractor, or filter the value head alone with kova=dict(layers='last')"
            )
    return found, []


def _reached(policy: ActorCriticPolicy) -> tuple[set[int], set[int]]:
    """The trainable parameters that the value depends on, and those that the action does."""
    policy.set_training_mode(False)
    # A copy of the space, whose own generator is left alone.
    obs, _ = policy.obs_to_tensor(copy.deepcopy(policy.observation_space).sample())
    with torch.enable_grad():
        distribution = policy.get_distribution(obs)
        outputs = (policy.predict_values(obs), distribution.log_prob(distribution.mode()))
    trained = [p for p in policy.parameters() if p.requires_grad]
    found = []
    for output in outputs:
        grads = torch.autograd.grad(output.sum(), trained, allow_unused=True)
        found.append({id(p) for p, grad in zip(trained, grads, strict=True) if grad is not None})
    with torch.no_grad():
        policy.get_distribution(obs)  # which the policy keeps: without a graph, or it could not be copied
    return found[0], found[1]

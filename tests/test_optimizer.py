"""How it behaves as an optimizer of PyTorch."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

from kova_rl import Kova, KovaError, covariance, evolution, observation
from kova_rl.filter.change import Scaled
from kova_rl.filter.step import State
from kova_rl.state import moved
from tests import members

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


def test_the_public_interface_of_the_design() -> None:
    critic = members.critic(dtype=torch.float32)
    optimizer = Kova(
        critic,
        lr=1.0,
        covariance=covariance.LowRank(rank=32, prior=1.0),
        evolution=evolution.Leakage(eta=0.01),
        observation=observation.BatchSize(),
    )
    assert isinstance(optimizer, torch.optim.Optimizer)
    info = optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
    assert set(info.as_dict()) == {
        "loss",
        "innovation_mean",
        "innovation_std",
        "nis",
        "update_norm",
        "variance_max",
        "variance_mean",
        "jitter",
    }
    belief = optimizer.posterior(lambda: critic(X).squeeze(-1))
    assert belief.mean.shape == belief.std.shape == (8,)
    assert belief.covariance.shape == (8, 8)
    assert not belief.mean.requires_grad
    assert not belief.std.requires_grad
    with optimizer.sampled(torch.Generator().manual_seed(0)):
        drawn = critic(X)
    assert not torch.equal(drawn, critic(X))


def test_defaults_are_a_tracked_filter() -> None:
    optimizer = Kova(members.critic())
    assert optimizer.covariance == covariance.Kronecker(1.0, 8, None)
    assert optimizer.evolution == evolution.Leakage(0.001)
    assert optimizer.observation == observation.Adaptive()
    assert "73 weights" in repr(optimizer)


def test_a_critic_that_is_not_of_linear_layers_alone_has_low_rank_by_default() -> None:
    convolution = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(2, 1))
    tied = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1))
    tied[2].weight = tied[0].weight
    for critic in (convolution, tied, nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 1))):
        optimizer = Kova(critic, prior=0.5)
        assert optimizer.covariance == covariance.LowRank(32, 0.5)
        assert optimizer.observation == observation.Adaptive()


@pytest.mark.parametrize("noise", [observation.BatchSize(), observation.MaxRatio()], ids=members.name)
def test_noises_without_a_unit_have_the_papers_prior(noise: observation.Observation) -> None:
    optimizer = Kova(members.critic(), observation=noise)
    assert optimizer.covariance == covariance.Kronecker(1.0)
    assert optimizer.evolution == evolution.Leakage(0.1)
    assert optimizer.observation == noise


def test_memoryless_is_the_released_code_by_default() -> None:
    """P_0 = I and P_n = N I: without a posterior there is no noise to learn."""
    optimizer = Kova(members.critic(), evolution=evolution.Memoryless(0.01))
    assert optimizer.covariance == covariance.LowRank(32, 1.0)
    assert optimizer.observation == observation.BatchSize()


def test_what_is_chosen_stays_chosen() -> None:
    optimizer = Kova(members.critic(), covariance=covariance.Diagonal(2.0))
    assert optimizer.covariance == covariance.Diagonal(2.0)
    assert optimizer.observation == observation.Adaptive()


def test_what_is_logged() -> None:
    critic = members.critic(dtype=torch.float32)
    before = [p.detach().clone() for p in critic.parameters()]
    innovation = X[:, 0] - critic(X).squeeze(-1).detach()
    structure = covariance.LowRank(prior=covariance.FanIn(0.5))
    info = Kova(critic, covariance=structure).step(lambda: critic(X).squeeze(-1), X[:, 0])
    assert info.loss == pytest.approx(float(innovation.square().mean()))
    assert info.innovation_mean == pytest.approx(float(innovation.mean()), abs=1e-6)
    assert info.innovation_std == pytest.approx(float(innovation.std(correction=0)))
    moved = sum(
        float((a - b).detach().square().sum()) for a, b in zip(before, critic.parameters(), strict=True)
    )
    assert info.update_norm == pytest.approx(moved**0.5, rel=1e-4)
    assert 0.0 < info.variance_mean < info.variance_max <= 1.0
    assert info.jitter == 0.0


@pytest.mark.parametrize("structure", members.STRUCTURES, ids=members.name)
def test_batches_of_changing_size_of_one_and_with_duplicates_just_work(
    structure: covariance.Covariance,
) -> None:
    critic = members.critic(dtype=torch.float32)
    optimizer = Kova(critic, covariance=structure, evolution=evolution.Stationary())
    for n in (8, 1, 33, 2, 1, 8):
        x = torch.randn(n, 3)
        optimizer.step(lambda x=x: critic(x).squeeze(-1), x[:, 0])
        x = x[:1].repeat(n, 1)
        optimizer.step(lambda x=x: critic(x).squeeze(-1), x[:, 0])
    assert all(torch.isfinite(p).all() for p in critic.parameters())


def test_schedulers_lower_lr_to_nothing() -> None:
    critic = members.critic(dtype=torch.float32)
    optimizer = Kova(critic)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=4)
    for _ in range(4):
        optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.0
    before = [p.detach().clone() for p in critic.parameters()]
    for structure in members.STRUCTURES:
        still = Kova(critic, covariance=structure, evolution=evolution.Stationary())
        still.param_groups[0]["lr"] = 0.0
        still.step(lambda: critic(X).squeeze(-1), X[:, 0])
        assert still.posterior(lambda: critic(X).squeeze(-1)).std.isfinite().all()
    optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
    assert all(torch.equal(a, b) for a, b in zip(before, critic.parameters(), strict=True))


def test_a_frozen_parameter_is_left_alone() -> None:
    critic = members.critic(dtype=torch.float32)
    critic[0].weight.requires_grad_(False)
    critic[2].bias.requires_grad_(False)
    kept = critic[0].weight.clone(), critic[2].bias.clone(), critic[0].bias.clone()
    for structure in members.STRUCTURES:
        optimizer = Kova(critic, covariance=structure, evolution=evolution.Stationary())
        optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
    assert torch.equal(critic[0].weight, kept[0])
    assert torch.equal(critic[2].bias, kept[1])
    assert not torch.equal(critic[0].bias, kept[2])


def test_a_parameter_frozen_later_is_left_alone_too() -> None:
    for kind in (evolution.Leakage(), evolution.Memoryless()):
        critic = members.critic(dtype=torch.float32)
        optimizer = Kova(critic, evolution=kind)
        optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])  # noqa: B023 - called at once
        critic[0].weight.requires_grad_(False)
        kept, other = critic[0].weight.clone(), critic[2].weight.detach().clone()
        optimizer.step(lambda: critic(X).squeeze(-1), -X[:, 0])  # noqa: B023
        assert torch.equal(critic[0].weight, kept)
        assert not torch.equal(critic[2].weight, other)


def test_the_last_layer_alone_with_the_rest_under_adam() -> None:
    critic = members.critic(dtype=torch.float32)
    body = [p for m in list(critic)[:-1] for p in m.parameters()]
    adam, optimizer = torch.optim.Adam(body, 1e-2), Kova(critic[-1])
    losses = []
    for _ in range(50):
        kept = [p.detach().clone() for p in body]
        losses.append(optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0]).loss)
        assert all(torch.equal(a, b) for a, b in zip(kept, body, strict=True))
        adam.zero_grad()
        (critic(X).squeeze(-1) - X[:, 0]).square().mean().backward()
        adam.step()
    assert losses[-1] < 0.1 * losses[0]
    assert optimizer.variances().shape == (7,)


def test_a_critic_with_several_outputs_through_a_gather() -> None:
    torch.manual_seed(0)
    q = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = Kova(q)
    actions = torch.arange(8).remainder(3)[:, None]  # the last action is never taken
    for _ in range(100):
        info = optimizer.step(lambda: q(X).gather(1, actions).squeeze(1), X[:, 0])
    assert info.loss < 1e-2
    spread = [optimizer.posterior(lambda a=a: q(X)[:, a]).std.mean() for a in range(4)]
    assert spread[3] > 1.5 * max(spread[:3])


def test_memoryless_allocates_nothing_and_says_it_has_no_posterior() -> None:
    for structure in members.STRUCTURES:
        critic = members.critic(dtype=torch.float32)
        optimizer = Kova(critic, covariance=structure, evolution=evolution.Memoryless())
        info = optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])  # noqa: B023 - called at once
        (memory,) = optimizer.state.values()
        assert memory["covariance"] == {}
        assert not optimizer.posterior(lambda: critic(X).squeeze(-1)).tracked  # noqa: B023
        assert info.variance_max == info.variance_mean == 1.0
        with pytest.raises(KovaError, match="keeps no posterior"), optimizer.sampled():
            pass


def test_no_step_inside_sampled_and_weights_come_back_after_an_error() -> None:
    critic = members.critic(dtype=torch.float32)
    optimizer = Kova(critic)
    before = [p.detach().clone() for p in critic.parameters()]
    with pytest.raises(KovaError, match="inside sampled"), optimizer.sampled():
        optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
    with pytest.raises(KovaError, match="inside sampled"), optimizer.sampled(), optimizer.sampled():
        pass
    with pytest.raises(RuntimeError, match="user"), optimizer.sampled():
        raise RuntimeError("user")
    assert all(torch.equal(a, b) for a, b in zip(before, critic.parameters(), strict=True))
    optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])


def test_no_copy_inside_sampled_since_it_would_take_a_draw_for_the_mean() -> None:
    critic = members.critic(dtype=torch.float32)
    optimizer = Kova(critic)
    for make in (copy.deepcopy, pickle.dumps):
        with pytest.raises(KovaError, match="copy of the optimizer inside sampled"), optimizer.sampled():
            make(optimizer)
    twin = copy.deepcopy(optimizer)
    twin.step(lambda: twin.module(X).squeeze(-1), X[:, 0])


def test_draws_repeat_with_their_generator() -> None:
    critic = members.critic(dtype=torch.float32)
    optimizer, drawn = Kova(critic), []
    for _ in range(2):
        with optimizer.sampled(torch.Generator().manual_seed(3)):
            drawn.append(critic(X))
    assert torch.equal(*drawn)


def test_unnormalised_inputs_warn_once_and_say_what_to_do() -> None:
    critic = nn.Linear(3, 1)
    paper = observation.BatchSize()
    optimizer = Kova(critic, observation=paper)
    with pytest.warns(UserWarning, match=r"the inputs of Linear.*far from order 1.*VecNormalize"):
        optimizer.step(lambda: critic(1e3 * X).squeeze(-1), X[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(lambda: critic(1e3 * X).squeeze(-1), X[:, 0])
        Kova(critic, covariance=covariance.LowRank(prior=1e-4), observation=paper).step(
            lambda: critic(1e3 * X).squeeze(-1), X[:, 0]
        )


def test_a_prior_that_is_too_bold_warns_and_says_what_to_do() -> None:
    critic = nn.Linear(3, 1)
    optimizer = Kova(critic, prior=1e6)
    with pytest.warns(UserWarning, match=r"above 100 N = 800.*VecNormalize.*FanIn"):
        optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])


def test_targets_out_of_the_priors_scale_warn_once_and_say_what_to_do() -> None:
    critic = nn.Linear(3, 1)
    optimizer = Kova(critic)
    with pytest.warns(UserWarning, match=r"far larger than the prior expects.*VecNormalize.*times larger"):
        optimizer.step(lambda: critic(X).squeeze(-1), 1e3 * X[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(lambda: critic(X).squeeze(-1), 1e3 * X[:, 0])
        fresh = nn.Linear(3, 1)
        Kova(fresh).step(lambda: fresh(X).squeeze(-1), X[:, 0])
        Kova(fresh, observation=observation.BatchSize()).step(lambda: fresh(X).squeeze(-1), 1e3 * X[:, 0])


@pytest.mark.filterwarnings("ignore:.*lazy.*:UserWarning")
@pytest.mark.parametrize("structure", members.STRUCTURES, ids=members.name)
def test_autocast_reaches_the_critic_and_not_the_filter(structure: covariance.Covariance) -> None:
    seen = []
    critic = members.critic(dtype=torch.float32)
    critic[0].register_forward_hook(lambda m, args, out: seen.append(out.dtype))
    optimizer = Kova(critic, covariance=structure, evolution=evolution.Stationary())
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(20):
            info = optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
        belief = optimizer.posterior(lambda: critic(X).squeeze(-1))
    assert set(seen) == {torch.bfloat16}
    assert info.loss < 0.1
    assert (belief.std > 0).all()


def test_half_precision_weights_with_a_float32_filter() -> None:
    critic = members.critic(dtype=torch.bfloat16)
    optimizer = Kova(critic, covariance=covariance.LowRank(dtype=torch.float32))
    x = X.bfloat16()
    losses = [optimizer.step(lambda: critic(x).squeeze(-1), x[:, 0]).loss for _ in range(30)]
    assert losses[-1] < 0.2 * losses[0]
    assert optimizer.posterior(lambda: critic(x).squeeze(-1)).std.dtype == torch.bfloat16


@pytest.mark.parametrize("structure", members.STRUCTURES, ids=members.name)
def test_a_module_that_is_made_double_later_keeps_its_filter(structure: covariance.Covariance) -> None:
    critic = members.critic(dtype=torch.float32)
    optimizer = Kova(critic, covariance=structure, evolution=evolution.Stationary())
    optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
    critic.double()
    for _ in range(10):
        info = optimizer.step(lambda: critic(X.double()).squeeze(-1), X[:, 0])
    assert info.loss < 0.1
    assert optimizer.posterior(lambda: critic(X.double()).squeeze(-1)).std.dtype == torch.float64


def test_built_and_loaded_in_inference_mode() -> None:
    critic = members.critic(dtype=torch.float32)
    with torch.inference_mode():
        optimizer = Kova(critic)
        optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
    with torch.inference_mode(), pytest.raises(KovaError, match="inference_mode"):
        optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])


def test_a_default_device_of_the_user_does_not_matter() -> None:
    critic = members.critic(dtype=torch.float32)
    optimizer = Kova(critic)
    with torch.device("meta"):
        optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
        optimizer.posterior(lambda: critic(X).squeeze(-1))


def test_state_dict_hooks_of_pytorch_run() -> None:
    seen: list[str] = []
    optimizer = Kova(members.critic())
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("pre"))
    optimizer.register_state_dict_post_hook(lambda o, state: seen.append("post"))
    optimizer.register_load_state_dict_pre_hook(lambda o, state: seen.append("load"))
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["pre", "post", "load", "loaded"]


def test_optimizers_and_beliefs_can_be_pickled() -> None:
    critic = members.critic(dtype=torch.float32)
    optimizer = Kova(critic)
    optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
    belief = optimizer.posterior(lambda: critic(X).squeeze(-1))
    assert torch.equal(pickle.loads(pickle.dumps(belief)).covariance, belief.covariance)
    twin = pickle.loads(pickle.dumps(optimizer))
    twin.step(lambda: twin.module(X).squeeze(-1), X[:, 0])
    optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
    assert all(torch.equal(a, b) for a, b in zip(critic.parameters(), twin.module.parameters(), strict=True))


def test_strategies_can_be_imported_by_name() -> None:
    from kova_rl.covariance import LowRank
    from kova_rl.evolution import Leakage
    from kova_rl.observation import BatchSize

    assert (LowRank, Leakage, BatchSize) == (covariance.LowRank, evolution.Leakage, observation.BatchSize)


def test_an_evolution_of_ones_own() -> None:
    class Mine(evolution.Evolution):
        kind = Scaled

        def change(self, memory: State) -> Scaled:
            return Scaled(1.001)

    critic = members.critic(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"Kronecker does not work with Mine.*Mine goes with .*Full"):
        Kova(critic, evolution=Mine())
    optimizer = Kova(critic, covariance=covariance.Full(), evolution=Mine())
    optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])


def test_one_group_only() -> None:
    optimizer = Kova(nn.Linear(3, 1))
    with pytest.raises(KovaError, match="build a second Kova"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def test_step_hooks_of_pytorch_run() -> None:
    critic, seen = members.critic(dtype=torch.float32), []
    optimizer = Kova(critic)
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
    assert seen == [1]


def test_the_state_follows_the_module_to_another_device() -> None:
    critic = members.critic(dtype=torch.float32)
    optimizer = Kova(critic)
    optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
    (memory,) = optimizer.state.values()
    elsewhere = moved(memory, torch.device("meta"))
    kept = elsewhere["covariance"]["layers"]["0"].values()
    assert {value.device.type for value in kept if isinstance(value, torch.Tensor)} == {"meta"}
    optimizer._device = torch.device("meta")  # as if the weights had just come back from there
    optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
    assert optimizer._device == torch.device("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_a_second_device() -> None:
    critic = members.critic(dtype=torch.float32)
    optimizer = Kova(critic)
    optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0])
    critic.to("cuda")
    optimizer.step(lambda: critic(X.cuda()).squeeze(-1), X[:, 0])
    assert optimizer.posterior(lambda: critic(X.cuda()).squeeze(-1)).std.is_cuda


def test_a_float64_covariance_with_float32_weights() -> None:
    for structure in members.STRUCTURES:
        critic = members.critic(dtype=torch.float32)
        settings = {"rank": 8} if isinstance(structure, covariance.LowRank) else {}
        double = type(structure)(**settings, dtype=torch.float64)
        optimizer = Kova(critic, covariance=double, evolution=evolution.Stationary())
        optimizer.step(lambda: critic(X).squeeze(-1), X[:, 0].double())  # noqa: B023 - called at once
        (memory,) = optimizer.state.values()
        kept = torch.utils._pytree.tree_leaves(memory["covariance"])
        assert all(value.dtype == torch.float64 for value in kept if isinstance(value, torch.Tensor))
        assert all(p.dtype == torch.float32 for p in critic.parameters())
        assert optimizer.posterior(lambda: critic(X).squeeze(-1)).std.dtype == torch.float32  # noqa: B023


def test_priors_by_layer_and_by_fan_in() -> None:
    critic = members.critic(dtype=torch.float32)
    by_layer = Kova(critic, covariance=covariance.LowRank(prior={"": 0.5, "2": 3.0}))
    assert sorted(by_layer.variances().tolist()) == pytest.approx([0.5] * 31 + [3.0] * 42)
    fan_in = Kova(
        critic, covariance=covariance.Diagonal(covariance.FanIn(2.0)), evolution=evolution.Stationary()
    )
    expected = sorted([2 / 3] * 18 + [2.0] * 6 + [2 / 6] * 36 + [2.0] * 6 + [2 / 6] * 6 + [2.0])
    assert sorted(fan_in.variances().tolist()) == pytest.approx(expected)


def curve(width: int, prior: float | covariance.FanIn) -> list[float]:
    """Mean loss over updates 1-50, 101-150 and 251-300 of the same regression problem."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
    structure, noise = covariance.LowRank(32, prior), observation.BatchSize()
    optimizer = Kova(critic, 1.0, structure, evolution.Leakage(0.01), noise)
    losses = []
    for _ in range(300):
        x = torch.randn(32, 4)
        y = torch.sin(x[:, 0]) + 0.5 * x[:, 1]
        losses.append(optimizer.step(lambda x=x: critic(x).squeeze(-1), y).loss)
    return [sum(losses[t - 50 : t]) / 50 for t in (50, 150, 300)]


def test_one_setting_serves_all_widths() -> None:
    """FanIn: the same eta and scale, widths 16 to 1,024, the same problem, similar error curves."""
    curves = {width: curve(width, covariance.FanIn(10.0)) for width in (16, 64, 256, 1024)}
    spread = [max(at) / min(at) for at in zip(*curves.values(), strict=True)]
    assert max(spread) < 2.5, curves
    assert all(found[-1] < 0.2 * found[0] for found in curves.values()), curves
    plain = [curve(width, 1.0) for width in (16, 1024)]
    assert max(max(at) / min(at) for at in zip(*plain, strict=True)) > 4.0, "a plain prior is not so even"

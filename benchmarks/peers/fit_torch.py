"""Straightforward PyTorch: a loop over users, one small autograd graph each. For comparison with
`jaxalign.rewards.fit`.

The same losses, the same number of Adam steps and the same features as ours; what differs is that users are visited one
after the other, as the published codes do.
"""

from collections.abc import Sequence

import numpy as np
import torch

Pairs = tuple[np.ndarray, np.ndarray]
"""Rows of the chosen and of the rejected texts of one user, `[pairs]` each."""


def _differences(features: np.ndarray, users: Sequence[Pairs]) -> list[torch.Tensor]:
    table = torch.tensor(features)
    return [table[torch.from_numpy(chosen)] - table[torch.from_numpy(rejected)] for chosen, rejected in users]


def per_user(
    features: np.ndarray, users: Sequence[Pairs], *, steps: int, rate: float, strength: float, shared: float
) -> None:
    """A common head, then an offset for each user in turn. `features` are standardised."""
    differences = _differences(features, users)
    v = torch.zeros(features.shape[1], requires_grad=True)
    optimiser = torch.optim.Adam([v], lr=rate)
    pooled = torch.cat(differences)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = torch.nn.functional.softplus(-pooled @ v).sum() + 0.5 * shared * v.square().sum()
        loss.backward()
        optimiser.step()
    common = v.detach()
    for difference in differences:
        offset = torch.zeros(features.shape[1], requires_grad=True)
        optimiser = torch.optim.Adam([offset], lr=rate)
        for _ in range(steps):
            optimiser.zero_grad()
            margin = difference @ (common + offset)
            loss = torch.nn.functional.softplus(-margin).sum() + 0.5 * strength * offset.square().sum()
            loss.backward()
            optimiser.step()


def lore(
    features: np.ndarray, users: Sequence[Pairs], *, rank: int, steps: int, rate: float, strength: float, ridge: float
) -> None:
    """Shared heads and user weights by joint Adam, the loss summed user by user."""
    differences = _differences(features, users)
    v = (0.01 * torch.randn(features.shape[1], rank)).requires_grad_()
    w = torch.zeros(len(users), rank, requires_grad=True)
    optimiser = torch.optim.Adam([v, w], lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = 0.5 * ridge * v.square().sum() + 0.5 * strength * w.square().sum()
        for user, difference in enumerate(differences):
            margin = difference @ v @ torch.softmax(w[user], dim=0)
            loss = loss + torch.nn.functional.softplus(-margin).sum()
        loss.backward()
        optimiser.step()

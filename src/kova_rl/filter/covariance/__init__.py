"""Structures of the covariance P of the weights."""

from kova_rl.filter.covariance.base import Covariance, FanIn
from kova_rl.filter.covariance.blocks import BlockDiagonal, LayerBlocks, NeuronBlocks
from kova_rl.filter.covariance.diagonal import Diagonal
from kova_rl.filter.covariance.full import Full
from kova_rl.filter.covariance.kronecker import Kronecker
from kova_rl.filter.covariance.low_rank import LowRank

__all__ = [
    "BlockDiagonal",
    "Covariance",
    "Diagonal",
    "FanIn",
    "Full",
    "Kronecker",
    "LayerBlocks",
    "LowRank",
    "NeuronBlocks",
]

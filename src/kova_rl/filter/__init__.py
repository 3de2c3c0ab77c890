"""Kalman mathematics on tensors. Nothing here knows an ``nn.Module`` or reinforcement learning."""

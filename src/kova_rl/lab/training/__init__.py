"""Training runs of Stable-Baselines3 that survive a crash, one at a time or as a sweep."""

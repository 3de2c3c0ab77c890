"""Stable-Baselines3, an optional extra: ``pip install 'kova-rl[sb3]'``. Nothing else imports it."""

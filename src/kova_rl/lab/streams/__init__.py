"""Critics compared on recorded rollouts: value tracking under a moving policy, without the policy."""

"""Policy evaluation: value error and coverage of critics where the true values are known."""

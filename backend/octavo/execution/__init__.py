"""Tensors: StepPlan -> forward -> sampled tokens. Knows the plan, not the planning."""

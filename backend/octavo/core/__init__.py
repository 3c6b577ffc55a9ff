"""Pure planning: which tokens run next and which blocks they own. No tensors, no I/O, no clock."""

"""Ties planning and execution together; what everyone outside talks to."""

"""Thin adapters that put octavo behind serving frameworks; each is a subpackage of its own."""

"""Validation room: published measurements against what the formulas predict for the same configuration."""

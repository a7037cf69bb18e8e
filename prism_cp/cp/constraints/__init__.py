"""Constraints of the stage model, one idea a file."""

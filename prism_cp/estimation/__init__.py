"""Estimation room: what one given configuration needs in memory and time, without searching.

Uses the tables of the planner; whether the configuration fits or could have been found by a search does not matter.
"""

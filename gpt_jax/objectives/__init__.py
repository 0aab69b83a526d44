"""Objectives: rows of token ids to what a trunk reads and what it must predict. numpy only."""

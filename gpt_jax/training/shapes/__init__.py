"""Further shapes of schedules, a file each, with a function `shape` of the type schedules.Shape."""

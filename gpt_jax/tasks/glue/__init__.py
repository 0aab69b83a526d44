"""The GLUE benchmark (Wang et al. 2018): nine tasks and a diagnostic set, one file per data set."""

"""The paper's results and what it takes to compare with them (Radford et al. 2018).

tables (2 to 5 and figure 2 as numbers), comparison and figures (ours beside the paper's), seeds
(spread over runs), zero_shot (tasks without fine-tuning), glue (submission format and score).
May import every subpackage above programs; programs and launch import it.
"""

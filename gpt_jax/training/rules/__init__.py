"""Further update rules, a file each, with a function `rule` of the type update_rules.Rule."""

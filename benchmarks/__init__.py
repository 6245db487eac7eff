"""One script per question of speed; `results/` keeps recorded runs with machine, versions and commit."""

"""Tasks: what a policy is trained on, as a folder with models, prompts and a held-out measure."""

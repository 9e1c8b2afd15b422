"""One module for each group of subcommands of ``rlhf-sweep``."""

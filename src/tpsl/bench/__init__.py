"""How fast this machine trains: the product and what else could be used, side by side in one run."""

"""The commands that run on a Ray cluster: a party's own, whose machines trust one another."""

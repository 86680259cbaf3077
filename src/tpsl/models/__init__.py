"""The two halves of the network, and how each is updated."""

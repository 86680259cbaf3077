"""Tables, feature encoding, splits and the batch plan. Knows nothing about privacy."""

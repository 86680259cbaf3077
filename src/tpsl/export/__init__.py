"""A half of a trained network as files for its owner, to be used without tpsl."""

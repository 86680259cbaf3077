"""Click logs as their publishers give them out: read in bounded memory, errors named by line."""

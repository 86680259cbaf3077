"""What a job will take: time, traffic, memory and money, predicted from a rehearsal of its own commands."""

"""What a job will take: time, traffic and money, by arithmetic from the job and the speed of an earlier run."""

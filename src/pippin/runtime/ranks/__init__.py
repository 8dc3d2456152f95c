"""One model over several processes: a group of ranks, which the pool leases as if it were one worker."""

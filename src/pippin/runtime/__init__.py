"""Who is in memory: worker processes, and the pool that keeps them within the machine's means."""

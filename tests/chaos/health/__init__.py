"""Whether a server answers `/health` in time, and who is to blame where it does not. Begin with `probes`."""

"""Where runs are computed: in turn, on processes or GPUs, on a Ray cluster, or data parallel."""

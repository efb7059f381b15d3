"""Where runs are computed: sequentially, on several processes or GPUs, on a Ray cluster, or data parallel."""

"""muster-flow: workflows of steps, run by Snakemake (docs/workflow.md)."""

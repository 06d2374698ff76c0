"""The paper: its numbers, tables and pictures come from stored records, and from nothing else."""

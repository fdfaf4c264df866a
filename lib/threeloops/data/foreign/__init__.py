"""Data that other programs wrote: compressed shards, and token files that can be imported."""

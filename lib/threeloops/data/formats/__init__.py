"""Samples as bytes: one file each, tar shards, TFRecord, token shards, and their checksums."""

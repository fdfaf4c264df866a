"""Samples as bytes: small files, tar shards, TFRecord, token shards, and their checksums."""

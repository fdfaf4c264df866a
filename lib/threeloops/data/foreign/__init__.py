"""Files of other programs: decompression of gzip shards, and recognition of token files."""

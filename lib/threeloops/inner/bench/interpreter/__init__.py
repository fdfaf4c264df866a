"""What is put right in Triton's interpreter."""

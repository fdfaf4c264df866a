"""Feeding the GPU: how samples lie on disk, how they are fetched ahead, and how an interrupted epoch goes on."""

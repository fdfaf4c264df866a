"""Explorers on pages without a kernel: HTML, its style, and the script that brings them to life."""

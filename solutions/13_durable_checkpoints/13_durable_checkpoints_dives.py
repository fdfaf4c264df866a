# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
#   threeloops:
#     title: What is left after a power cut? Deep dives
#     minutes: 40
# ---

# %% [markdown]
# # What is left after a power cut? Deep dives

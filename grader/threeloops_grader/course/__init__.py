"""Run and grade whole labs: `make course`, its pages, and its records of green runs."""

# syntax=docker/dockerfile:1
# The image for `threeloops grade --on kubernetes`. It holds solutions and hidden tests: push it to a private registry.
# From the top of the repository:
#   docker build -f docs/teaching/grade.Dockerfile -t registry.example/threeloops-grade .
FROM python:3.12-slim
# Labs compile kernels and count instructions with the C++ compiler.
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap g++ make && rm -rf /var/lib/apt/lists/*
WORKDIR /course
COPY Makefile pyproject.toml requirements.txt README.md LICENSE nbgrader_config.py ./
COPY scripts ./scripts
COPY lib ./lib
COPY grader ./grader
COPY benchmarks ./benchmarks
COPY solutions ./solutions
COPY labs ./labs
RUN make environment
ENV PATH=/course/.venv/bin:$PATH THREELOOPS_ROOT=/course PYTHONDONTWRITEBYTECODE=1

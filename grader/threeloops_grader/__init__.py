"""The harness: releases the labs, executes them, and grades submissions behind the wall."""

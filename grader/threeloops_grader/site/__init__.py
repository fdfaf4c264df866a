"""The course as web pages: released labs with the outputs of demonstrations, and living explorers without a kernel."""

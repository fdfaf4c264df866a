"""The library behind the course. Import the room you need: `threeloops.inner.roofline`, `threeloops.lab`, …"""

__version__ = "0.1.0"

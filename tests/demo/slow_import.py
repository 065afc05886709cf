"""A module that takes long to import."""

from tests.demo.overruns import spin

spin(60.0)

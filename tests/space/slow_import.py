"""A module that takes long to import."""

from tests.space.overruns import spin

spin(60.0)

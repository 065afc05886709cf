"""Tests of what talks to the Hugging Face Hub, run against a Hub of our own on the loopback address."""

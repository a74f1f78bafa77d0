"""Specs to GLSL: resources, the printer of bodies and functions, and the Jinja environment."""

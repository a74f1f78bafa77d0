"""Exact float32 arithmetic of vkdnn on the host: `flush`, its mode, and `basic`, the operations themselves.

It must never depend on anything above it, and never return a subnormal float32.
"""

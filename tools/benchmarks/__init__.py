"""What tools/bench measures and how it tells it. No part of the package; nothing here is run by a test but --quick."""

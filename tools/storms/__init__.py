"""tools/storm: what it does to a shader store and to the processes that use it. No part of the package."""

"""Where the time of a call goes: kernel by kernel, with what each reaches of the device's ceilings, and on the host.

It must never time anything unasked.
"""

from vkdnn.profile.ceilings import Ceilings
from vkdnn.profile.measure import profile
from vkdnn.profile.result import Profile

__all__ = ["Ceilings", "Profile", "profile"]

from tpsl.net.rounding import *  # noqa: F403
from tpsl.net.rounding import _SCALE_BYTES  # noqa: F401

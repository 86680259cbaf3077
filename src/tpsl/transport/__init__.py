"""Moves messages between parties, and checks each one before anybody computes with it."""

from tpsl.transport import quiet as quiet  # isort: skip  (before anything imports gRPC)
from tpsl.transport.channel import (
    MESSAGE_OVERHEAD,
    WINDOW,
    Channel,
    JobStopped,
    Meeting,
    PeerMissing,
    PeerRestarted,
    Refused,
    Traffic,
    run_alone,
)
from tpsl.transport.checks import BadMessage, checked_tensor
from tpsl.transport.frames import Limits, WireDtype, as_received, as_sent
from tpsl.transport.handshake import Agreement
from tpsl.transport.in_process import InProcessMeeting, pair, run_together
from tpsl.transport.messages import (
    Bye,
    Finished,
    Message,
    Position,
    Rewind,
    Start,
    Stop,
    TensorMessage,
    Verdict,
)

__all__ = [
    "MESSAGE_OVERHEAD",
    "WINDOW",
    "Agreement",
    "BadMessage",
    "Bye",
    "Channel",
    "Finished",
    "InProcessMeeting",
    "JobStopped",
    "Limits",
    "Meeting",
    "Message",
    "PeerMissing",
    "PeerRestarted",
    "Position",
    "Refused",
    "Rewind",
    "Start",
    "Stop",
    "TensorMessage",
    "Traffic",
    "Verdict",
    "WireDtype",
    "as_received",
    "as_sent",
    "checked_tensor",
    "pair",
    "run_alone",
    "run_together",
]

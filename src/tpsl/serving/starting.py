"""How a service of a party starts: which one it is, and how it gives way to others on the machine meanwhile."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tpsl.net.messages import LABEL_PARTY
from tpsl.progress import Notice
from tpsl.run.local import Local, LocalError, certificates_of, connect_address, listen_address, party_of

if TYPE_CHECKING:
    from tpsl.serving.services import FeatureService, LabelService

_LOWEST_PRIORITY = 19
Result = TypeVar("Result")


def prepared(prepare: Callable[[], Result], take_over: bool) -> Result:
    """Return what `prepare` returns; with `take_over`, from a thread that gives way to everything else on the machine.

    To import PyTorch and to read a model takes seconds of a processor that another process needs to serve. What is
    there afterwards stays: the garbage collector, which stops everything else, need not look at it between requests.
    """
    priority = _LOWEST_PRIORITY if take_over else os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1, initializer=os.setpriority, initargs=(os.PRIO_PROCESS, 0, priority)) as thread:
        result = thread.submit(prepare).result()
        thread.submit(gc.collect).result()
    gc.freeze()
    return result


def service_of(
    run: Path, mine: Local, notice: Notice, *, take_over: bool, local_head: bool
) -> LabelService | FeatureService:
    """Return the service of the party that this side is, which its address says."""
    import torch

    from tpsl.model.trained import TrainedModel

    try:
        from tpsl.serving.http_server import HttpAccess
        from tpsl.serving.services import FeatureService, LabelService, ServiceOptions
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise LocalError("scoring needs Starlette and uvicorn: `pip install 'tpsl[serve]'` gets them") from None
    torch.set_num_threads(mine.threads or 1)  # batches are small: threads would wait for each other
    secure = not mine.insecure_loopback
    http = HttpAccess.of(mine.http, mine.http_token, mine.http_certificate)
    options = ServiceOptions(run, http, mine.deadline, take_over)
    if mine.connect is not None:
        party = party_of(TrainedModel.open(run).run.job(), mine, mine.party)
        channel = certificates_of(mine, party).channel() if secure else None
        return FeatureService(options, party, connect_address(mine), channel, notice)
    if mine.listen is None:
        raise LocalError("a label party needs --listen HOST:PORT, a feature party --connect HOST:PORT")
    server = certificates_of(mine, LABEL_PARTY).server() if secure else None
    returns, listen = mine.returns, listen_address(mine)
    return LabelService(options, listen, server, notice, local_head=local_head, returns=returns)

"""One party of a job as its program runs it, and the other as a test wants it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpsl.audit.replay import FrameLog, SentFrame
from tpsl.data.dataset import load
from tpsl.net.agreement import Agreement
from tpsl.net.asking import Answers
from tpsl.net.client import LabelClient
from tpsl.net.connection import Patience, Terms
from tpsl.net.desk import Desk
from tpsl.net.failures import NetError
from tpsl.net.messages import Message
from tpsl.net.server import LabelServer
from tpsl.run.alone import AskLabel
from tpsl.run.job import Job
from tpsl.run.job_agreement import limits
from tpsl.run.role import FeatureRole, FeatureRun, LabelRole
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.stages import METHODS, attend_as_features, attend_as_label
from tpsl.run.vaults import RunVault
from tpsl.vault import ReleasePolicy

Answer = Callable[[str, int, int, Message], Message]
"""What the label party answers to a question: `answer(method, step, part, message)`."""


class Scripted:
    """A label party in this process that answers what it is told to, and starts where it is told to."""

    def __init__(self, answer: Answer, *starts: int | Message) -> None:
        self._answer, self._starts = answer, list(starts or (0,))
        self.offered: list[tuple[int, ...]] = []
        self.seen: list[tuple[str, str, int, int]] = []
        """What was asked and answered, in order."""

    def agree(self, said: Answers) -> Answers:
        ((name, message),) = said.items()
        self.offered.append(message.numbers)
        start = self._starts.pop(0)
        return {name: start if isinstance(start, Message) else Message(step=start)}

    def ask(self, method: str, step: int, part: int, said: Answers) -> Answers:
        return self.ask_ahead(method, step, part, said)()

    def ask_ahead(self, method: str, step: int, part: int, said: Answers) -> Callable[[], Answers]:
        ((name, message),) = said.items()
        self.seen.append(("asked", method, step, part))
        found = self._answer(method, step, part, message)

        def answer() -> Answers:
            self.seen.append(("answered", method, step, part))
            return {name: replace(found, step=step, part=part)}

        return answer


def feature_against(label: Scripted, agreed: Job, folder: Path) -> FeatureRole:
    """Run the only feature party of a job against a label party."""
    run = RunFolder(folder)
    with run.started(agreed, ["feature"]):
        role = FeatureRole(RunSetup(agreed, run), load(agreed.data).feature_sides["feature"])
        attend_as_features(FeatureRun([role], label))
    return role


@contextmanager
def label_role(agreed: Job, folder: Path, policy: ReleasePolicy | None = None) -> Iterator[LabelRole]:
    """The label party of a job, with a vault in its run."""
    side, run = load(agreed.data).label_side, RunFolder(folder)
    with run.started(agreed, ["label"]):
        setup = RunSetup(agreed, run)
        vault = RunVault(setup, side, run.label / "vault", *([] if policy is None else [policy]))
        yield LabelRole(setup, side.records, vault)


def over_loopback(role: LabelRole, ask: Callable[[LabelClient], Any], calls: int | None = None) -> Any:
    """Let a label party be asked over gRPC; return what `ask` returns, or raise why the label party ended."""
    agreed, accepted = Agreement({"job": role.job.digest()}, b"ids"), limits(role.job, role.schedule)
    if calls is not None:
        accepted = replace(accepted, calls=calls)
    terms = Terms(accepted, role.job.wire_type, Patience(silence=2, wait=20))
    (party,) = role.job.data.feature_parties
    desk = Desk((party,), agreed, terms)

    def attend() -> None:
        try:
            attend_as_label(role, desk)
        except NetError as error:
            server.stop(error)
            raise

    with (
        LabelServer("127.0.0.1:0", desk, METHODS, certificates=None) as server,
        ThreadPoolExecutor(1) as thread,
        LabelClient(f"127.0.0.1:{server.port}", party, agreed, terms, certificates=None) as client,
    ):
        serving = thread.submit(attend)
        try:
            found = ask(client)
        finally:
            serving.result(60)
        return found


def logging(frames: list[SentFrame]) -> AskLabel:
    """Have every message made into bytes and noted, in one process."""
    return lambda begin, dtype: FrameLog(begin, dtype, frames.append)

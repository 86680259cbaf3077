"""What attacks and audits found about a run, kept beside it: in the label party's folder, which no other party reads.

RUN/label/attacks.json      the attacks, scored with true labels, with their ROC curves
RUN/label/audit.json        the lower bound on ε
RUN/label/replay.json       record and replay
RUN/label/examination.json  which parts the newest audit had, and what it accuses
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from tpsl.files import for_json, read_plain, write_atomically
from tpsl.report.words import at_least_text, count_text, significant
from tpsl.run.run_folder import RunError, RunFolder

Finding = Literal["attacks", "audit", "replay", "examination"]


def keep_finding(run: Path, finding: Finding, content: dict[str, Any]) -> None:
    """Keep what was found, for reports; it replaces what was found before."""
    write_atomically(_path(run, finding), json.dumps(for_json(content), ensure_ascii=False, allow_nan=False).encode())


def read_finding(run: Path, finding: Finding) -> dict[str, Any] | None:
    """Return what was found, or None if nothing was looked for."""
    path = _path(run, finding)
    if not path.exists():
        return None
    try:
        content = json.loads(read_plain(path))
        if not isinstance(content, dict) or any(key not in content for key in _NEEDED[finding]):
            raise ValueError(f"it is no mapping with {', '.join(_NEEDED[finding])}")
        if finding == "attacks" and not all(
            isinstance(attack, dict) and {"auc", "auc_low", "auc_high", "needs"} <= attack.keys()
            for attack in content["attacks"].values()
        ):
            raise ValueError("an attack has no AUC")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: is damaged ({error})") from error
    return content


_NEEDED: dict[Finding, tuple[str, ...]] = {
    "attacks": ("attacks", "ceiling", "closed_form"),
    "audit": ("claimed", "lower_bound", "confidence", "passed"),
    "replay": ("passed", "flipped", "files", "bytes"),
    "examination": ("passed", "accusations", "parts"),
}


def _path(run: Path, finding: Finding) -> Path:
    return RunFolder(run).label / f"{finding}.json"


def audit_words(run: Path, claimed: str) -> list[str]:
    """Return what audits of a run have found, a sentence each; `claimed` is the ε of its release as it is shown."""
    found, audit, replay = read_finding(run, "examination"), read_finding(run, "audit"), read_finding(run, "replay")
    told = list[str]()
    if audit:
        bound, confidence = at_least_text(audit["lower_bound"]), significant(100 * audit["confidence"])
        told.append(
            "Records with fair-coin labels were planted, and an attacker guessed "
            f"{count_text(audit.get('right'))} of {count_text(audit.get('guessed'))} coins right: ε is at least "
            f"{bound} at {confidence} % confidence, and {claimed} is claimed. "
            f"The claim {'holds' if audit['passed'] else 'does NOT hold'}."
        )
    if found and found["passed"]:
        told.append(f"The audit looked at {', '.join(found['parts'])} and found nothing.")
    elif found:
        told.append(f"The audit FAILED. {'. '.join(found['accusations'])}.")
    if replay and replay["passed"]:
        told.append(
            f"Record and replay: {replay['flipped']:,} true labels flipped, the noisy ones kept; all "
            f"{replay['bytes']:,} bytes of transcript and weights stayed the same."
        )
    elif replay:
        changed = len(replay.get("differences") or ()) or "some"
        told.append(f"Record and replay FAILED: {changed} files changed when true labels were flipped.")
    return told

"""The audit: find out from a job's own bytes, releases and vault whether it keeps the ε that it claims."""

from tpsl.audit.canaries import AuditError
from tpsl.audit.canary_bound import AuditResult, audit, clopper_pearson_lower
from tpsl.audit.examination import PARTS, Examination, Part, VaultResult, examine
from tpsl.audit.repeated_releases import ReleasesResult, repeat_releases
from tpsl.audit.replay import Difference, ReplayResult, replay
from tpsl.audit.statistic_canaries import StatisticResult, audit_statistic

__all__ = [
    "PARTS",
    "AuditError",
    "AuditResult",
    "Difference",
    "Examination",
    "Part",
    "ReleasesResult",
    "ReplayResult",
    "StatisticResult",
    "VaultResult",
    "audit",
    "audit_statistic",
    "clopper_pearson_lower",
    "examine",
    "repeat_releases",
    "replay",
]

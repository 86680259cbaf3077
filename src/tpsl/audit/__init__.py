"""The audit: find out from a job's own transcript whether it keeps the ε that it claims."""

from tpsl.audit.audit import AuditResult, audit
from tpsl.audit.binomial import clopper_pearson_lower
from tpsl.audit.folder import AuditError
from tpsl.audit.replay import Difference, ReplayResult, replay

__all__ = ["AuditError", "AuditResult", "Difference", "ReplayResult", "audit", "clopper_pearson_lower", "replay"]

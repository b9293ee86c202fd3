"""Goldens and evidence: what the reference gave, and what runs on real devices gave, as records that are held to.

The families of goldens are in :mod:`qsa.golden.families`, which need the reference's model; they are not imported here.
"""

from .case import CaseError
from .device_records import EvidenceError
from .evidence_structs import Device, Evidence, Failure, Row, Section, Step, Switch
from .record import GoldenError, Output, Produced, Provenance, Reason, Record, Statistics
from .sources import Fingerprint
from .store import Store

__all__ = [
    "CaseError",
    "Device",
    "Evidence",
    "EvidenceError",
    "Failure",
    "Fingerprint",
    "GoldenError",
    "Output",
    "Produced",
    "Provenance",
    "Reason",
    "Record",
    "Row",
    "Section",
    "Statistics",
    "Step",
    "Store",
    "Switch",
]

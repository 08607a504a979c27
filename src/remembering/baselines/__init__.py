"""Rivals on the same backbone: one file a method, one contract, one registry."""

from dataclasses import dataclass

from remembering.baselines.base import Baseline
from remembering.baselines.bir import BIR
from remembering.baselines.bir_si import BIRSI
from remembering.baselines.clom import CLOM
from remembering.baselines.der import DER
from remembering.baselines.ewc import EWC
from remembering.baselines.fetril import FeTrIL
from remembering.baselines.finetune import FineTuning
from remembering.baselines.gaussian import FrozenGaussians
from remembering.baselines.hypernet import HyperNet
from remembering.baselines.icarl import ICaRL
from remembering.baselines.il2a import IL2A
from remembering.baselines.joint import Joint
from remembering.baselines.lwf import LwF
from remembering.baselines.mnemonics import Mnemonics
from remembering.baselines.muc import MUC
from remembering.baselines.ncm import NearestClassMean
from remembering.baselines.online_ewc import OnlineEWC
from remembering.baselines.owm import OWM
from remembering.baselines.pass_ import PASS
from remembering.baselines.ranpac import FrozenRanPAC, RanPAC
from remembering.baselines.si import SI
from remembering.baselines.slda import StreamingLDA
from remembering.baselines.ssre import SSRE
from remembering.baselines.supsup import SupSup

_METHODS: tuple[type[Baseline], ...] = (
    FineTuning,
    Joint,
    NearestClassMean,
    FrozenGaussians,
    StreamingLDA,
    RanPAC,
    FrozenRanPAC,
    LwF,
    EWC,
    OnlineEWC,
    SI,
    ICaRL,
    DER,
    Mnemonics,
    MUC,
    CLOM,
    HyperNet,
    SupSup,
    FeTrIL,
    PASS,
    IL2A,
    SSRE,
    OWM,
    BIR,
    BIRSI,
)
BASELINES: dict[str, type[Baseline]] = {method.name: method for method in _METHODS}


@dataclass(frozen=True)
class LeftOut:
    """A method of the paper's tables that cannot be carried over, and why not."""

    title: str
    reference: str
    reason: str
    published: str | None = None
    """Its row in the paper's Table 1, if it has one."""


LEFT_OUT: dict[str, LeftOut] = {}
"""By name; their rows stay in every comparison."""

__all__ = ["BASELINES", "LEFT_OUT", "Baseline", "LeftOut"]

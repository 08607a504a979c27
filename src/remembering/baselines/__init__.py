"""Baselines: other continual learners on the same frozen backbone, one file per method.

All implement `remembering.learner.Learner` through the base class in `base`; `single_adapter`,
`first_session` and `taskwise` hold what several of them share. The Remembering Transformer itself
is not here, and neither is the choice of methods and options for an experiment (see
`experiments.methods`).
"""

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
from remembering.baselines.joint import GaussianJoint, Joint, TunedJoint
from remembering.baselines.lwf import LwF
from remembering.baselines.mnemonics import Mnemonics
from remembering.baselines.muc import MUC
from remembering.baselines.ncm import NearestClassMean, NearestClassMeanOurFeatures
from remembering.baselines.online_ewc import OnlineEWC
from remembering.baselines.owm import OWM
from remembering.baselines.pass_ import PASS
from remembering.baselines.ranpac import FrozenRanPAC, RanPAC, RanPACOurFeatures
from remembering.baselines.si import SI
from remembering.baselines.slda import StreamingLDA, StreamingLDAOurFeatures
from remembering.baselines.ssre import SSRE
from remembering.baselines.supsup import SupSup

_ALL: tuple[type[Baseline], ...] = (
    FineTuning,
    Joint,
    TunedJoint,
    GaussianJoint,
    NearestClassMean,
    NearestClassMeanOurFeatures,
    FrozenGaussians,
    StreamingLDA,
    StreamingLDAOurFeatures,
    RanPAC,
    FrozenRanPAC,
    RanPACOurFeatures,
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
BASELINES: dict[str, type[Baseline]] = {method.name: method for method in _ALL}


__all__ = ["BASELINES", "Baseline"]

"""The mathematics: HiPPO matrices, initializations, discretizations and the three structures of state matrices."""

from statespan.ssm import hippo, inits
from statespan.ssm.dense import Dense
from statespan.ssm.diagonal import Diagonal
from statespan.ssm.discretize import bilinear, foh, zoh
from statespan.ssm.dplr import DPLR
from statespan.ssm.structure import Operators, Structure

__all__ = ["DPLR", "Dense", "Diagonal", "Operators", "Structure", "bilinear", "foh", "hippo", "inits", "zoh"]

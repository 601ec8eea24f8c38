"""Influence engines behind one interface; importing this package registers them."""

from gradian.engines import datainf, graddot, tracin
from gradian.engines.base import (
    ENGINES,
    BlockView,
    EngineEntry,
    EngineSettings,
    GradientStore,
    GramStore,
    TransformedQuery,
    engine,
)

__all__ = [
    "ENGINES",
    "BlockView",
    "EngineEntry",
    "EngineSettings",
    "GradientStore",
    "GramStore",
    "TransformedQuery",
    "datainf",
    "engine",
    "graddot",
    "tracin",
]

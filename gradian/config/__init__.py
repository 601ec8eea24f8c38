"""Settings: the schema and how a file and flags become one config."""

from gradian.config.load import config_from_mapping, dump_config, load_config
from gradian.config.schema import (
    ClusteringConfig,
    Config,
    EngineConfig,
    EvaluationConfig,
    GradsConfig,
    TrainConfig,
)

__all__ = [
    "ClusteringConfig",
    "Config",
    "EngineConfig",
    "EvaluationConfig",
    "GradsConfig",
    "TrainConfig",
    "config_from_mapping",
    "dump_config",
    "load_config",
]

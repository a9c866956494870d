"""Vitrine: the Vision Transformer paper as a tool. The public names are imported when first used, and torch with them."""

from typing import TYPE_CHECKING

from vitrine.core.lazy import lazy_names

if TYPE_CHECKING:
    from vitrine.data.batch import Batch
    from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
    from vitrine.data.loader import Loader
    from vitrine.data.mixing import Mixing
    from vitrine.data.opening import open_data, open_train_and_test
    from vitrine.data.preprocessing import Preprocessing
    from vitrine.data.source import Source
    from vitrine.data.transforms import Augmentation, Evaluation
    from vitrine.evaluate.config import EvaluationConfig, ProbeConfig, ReadingConfig
    from vitrine.evaluate.features import Features, Split
    from vitrine.evaluate.few_shot import evaluate_few_shot
    from vitrine.evaluate.judging import judge
    from vitrine.evaluate.measuring import featurise_images
    from vitrine.evaluate.prediction import predict_files
    from vitrine.evaluate.probes import fit_probe
    from vitrine.formats.checkpoint import Checkpoint
    from vitrine.formats.config import Facts
    from vitrine.formats.load import load_checkpoint, load_model
    from vitrine.formats.save import save_checkpoint, save_model
    from vitrine.formats.verify import verify_checkpoint
    from vitrine.models.config import AxialConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
    from vitrine.models.cost import Cost, compute_cost
    from vitrine.models.model import Encoded, Model
    from vitrine.models.registry import MODELS, build_model
    from vitrine.models.settings import ModelSettings
    from vitrine.objectives.config import SupervisedConfig
    from vitrine.recipe import Recipe, with_changes
    from vitrine.recipes.table import find_recipe, find_transfer
    from vitrine.run.run import run_recipe
    from vitrine.run.summary import Summary
    from vitrine.train.config import MachineConfig, OptimConfig, ReportConfig, SavingConfig

__version__ = "0.1.0"
__all__ = [
    "MODELS",
    "AugmentConfig",
    "Augmentation",
    "AxialConfig",
    "Batch",
    "Checkpoint",
    "Cost",
    "DataConfig",
    "Encoded",
    "Evaluation",
    "EvaluationConfig",
    "Facts",
    "Features",
    "HybridConfig",
    "Loader",
    "LoaderConfig",
    "MachineConfig",
    "Mixing",
    "Model",
    "ModelConfig",
    "ModelSettings",
    "OptimConfig",
    "Preprocessing",
    "ProbeConfig",
    "ReadingConfig",
    "Recipe",
    "ReportConfig",
    "ResNetConfig",
    "SavingConfig",
    "Source",
    "Split",
    "Summary",
    "SupervisedConfig",
    "ViTConfig",
    "build_model",
    "compute_cost",
    "evaluate_few_shot",
    "featurise_images",
    "find_recipe",
    "find_transfer",
    "fit_probe",
    "judge",
    "load_checkpoint",
    "load_model",
    "open_data",
    "open_train_and_test",
    "predict_files",
    "run_recipe",
    "save_checkpoint",
    "save_model",
    "verify_checkpoint",
    "with_changes",
]

HOMES = {
    "MODELS": "vitrine.models.registry",
    "AugmentConfig": "vitrine.data.config",
    "Augmentation": "vitrine.data.transforms",
    "AxialConfig": "vitrine.models.config",
    "Batch": "vitrine.data.batch",
    "Checkpoint": "vitrine.formats.checkpoint",
    "Cost": "vitrine.models.cost",
    "DataConfig": "vitrine.data.config",
    "Encoded": "vitrine.models.model",
    "Evaluation": "vitrine.data.transforms",
    "EvaluationConfig": "vitrine.evaluate.config",
    "Facts": "vitrine.formats.config",
    "Features": "vitrine.evaluate.features",
    "HybridConfig": "vitrine.models.config",
    "Loader": "vitrine.data.loader",
    "LoaderConfig": "vitrine.data.config",
    "MachineConfig": "vitrine.train.config",
    "Mixing": "vitrine.data.mixing",
    "Model": "vitrine.models.model",
    "ModelConfig": "vitrine.models.config",
    "ModelSettings": "vitrine.models.settings",
    "OptimConfig": "vitrine.train.config",
    "Preprocessing": "vitrine.data.preprocessing",
    "ProbeConfig": "vitrine.evaluate.config",
    "ReadingConfig": "vitrine.evaluate.config",
    "Recipe": "vitrine.recipe",
    "ReportConfig": "vitrine.train.config",
    "ResNetConfig": "vitrine.models.config",
    "SavingConfig": "vitrine.train.config",
    "Source": "vitrine.data.source",
    "Split": "vitrine.evaluate.features",
    "Summary": "vitrine.run.summary",
    "SupervisedConfig": "vitrine.objectives.config",
    "ViTConfig": "vitrine.models.config",
    "build_model": "vitrine.models.registry",
    "compute_cost": "vitrine.models.cost",
    "evaluate_few_shot": "vitrine.evaluate.few_shot",
    "featurise_images": "vitrine.evaluate.measuring",
    "find_recipe": "vitrine.recipes.table",
    "find_transfer": "vitrine.recipes.table",
    "fit_probe": "vitrine.evaluate.probes",
    "judge": "vitrine.evaluate.judging",
    "load_checkpoint": "vitrine.formats.load",
    "load_model": "vitrine.formats.load",
    "open_data": "vitrine.data.opening",
    "open_train_and_test": "vitrine.data.opening",
    "predict_files": "vitrine.evaluate.prediction",
    "run_recipe": "vitrine.run.run",
    "save_checkpoint": "vitrine.formats.save",
    "save_model": "vitrine.formats.save",
    "verify_checkpoint": "vitrine.formats.verify",
    "with_changes": "vitrine.recipe",
}


__getattr__ = lazy_names(__name__, HOMES)


def __dir__() -> list[str]:
    return [*globals(), *HOMES]

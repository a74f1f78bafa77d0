"""Training a language model on text: data, the loop, going on with a run, the parity check, decoding, the loss curve.

It must draw randomness from a seed alone: the same text and options give the same bits everywhere.
"""

from vkdnn.train.data import Corpus, batch_at, load_text, sample_text, standard_library
from vkdnn.train.decode import generate, load_model
from vkdnn.train.job import OPTIMIZERS, Job
from vkdnn.train.loop import Stop, Trainer, TrainingError
from vkdnn.train.memory import Usage, memory_report
from vkdnn.train.models import MODELS, Kind, Model, make_config, make_model, model_name
from vkdnn.train.plot import plot_losses
from vkdnn.train.resume import CHECKPOINT_NAME, Start, load_start, same_text
from vkdnn.train.verify import Parity, State, compare, run_steps, verify

__all__ = [
    "CHECKPOINT_NAME",
    "MODELS",
    "OPTIMIZERS",
    "Corpus",
    "Job",
    "Kind",
    "Model",
    "Parity",
    "Start",
    "State",
    "Stop",
    "Trainer",
    "TrainingError",
    "Usage",
    "batch_at",
    "compare",
    "generate",
    "load_model",
    "load_start",
    "load_text",
    "make_config",
    "make_model",
    "memory_report",
    "model_name",
    "plot_losses",
    "run_steps",
    "same_text",
    "sample_text",
    "standard_library",
    "verify",
]

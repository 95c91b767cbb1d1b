"""The table: which module trains on which data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule

from zoo import batches, buffers, builds, logs, losses, manual, networks, optimizers, teachers
from zoo import data as sets
from zoo.data import SIZES, UNEVEN, Collate, Make, ZooData, points


@dataclass(frozen=True)
class Row:
    """A module and its data.

    Attributes:
        module: the LightningModule's class, which takes no arguments.
        data: makes a client's examples.
        collate: makes a batch of a list of examples; None for what a DataLoader makes.
        sizes: n_k of each client.
        wrap: what is made of the module before it trains, ``torch.compile`` for one.
        name: the row's name, the class's by default.
    """

    module: type[LightningModule]
    data: Make = points
    collate: Collate | None = None
    sizes: Sequence[int] = SIZES
    wrap: Callable[[Any], Any] = lambda module: module
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.module.__name__

    def datamodule(self, sizes: Sequence[int] | None = None, **settings: Any) -> ZooData:
        """Make the data of the row's clients, or of clients with other numbers of examples."""
        return ZooData(self.data, self.collate, sizes or self.sizes, **settings)


ROWS = [
    # Networks and losses
    Row(networks.Classifier),
    Row(losses.Regression, sets.curves),
    Row(networks.Convolutions, sets.images),
    Row(networks.NormDropout),
    Row(networks.Tied),
    Row(builds.ChannelsLast, sets.images),
    Row(builds.Transposed),
    Row(builds.EvaluationMode),
    Row(builds.FrozenBackbone),
    Row(builds.HalfTable),
    Row(builds.LowRank),
    Row(builds.AdaptersSaved),
    Row(networks.Pruned),
    Row(losses.Autoencoder, sets.unlabelled),
    Row(losses.Variational, sets.unlabelled),
    Row(losses.Diffusion),
    Row(losses.TwoViews),
    Row(batches.LanguageModel, sets.tokens),
    Row(batches.Recurrent, sets.series),
    Row(networks.VisionTransformer, sets.images),
    Row(batches.GraphNetwork, sets.graphs),
    Row(batches.WordBag, sets.labelled_tokens),
    Row(networks.StochasticDepth),
    Row(networks.Binarised),
    Row(networks.SpectralNorm),
    Row(networks.WeightNorm),
    Row(networks.Checkpointed),
    Row(networks.Experts),
    Row(losses.InnerLoop),
    Row(losses.Derivative),
    Row(losses.Prototypes, sets.episodes),
    Row(losses.PolicyGradient),
    Row(builds.ConfiguresModel),
    Row(builds.BuildsInSetup),
    Row(builds.Lazy),
    Row(builds.CompiledPart),
    Row(networks.NormDropout, wrap=builds.compiled, name="CompiledModule"),
    # Data
    Row(networks.Classifier, sets.Augmented, name="AugmentedExamples"),
    Row(networks.Classifier, sizes=UNEVEN, name="LastBatchOfOne"),
    Row(batches.ChangesBatches),
    Row(losses.BareBatches, sets.bare),
    Row(batches.Bytes, sets.small_bytes),
    Row(losses.ImageText, sets.pairs),
    Row(batches.TwoTasks, sets.tables),
    Row(batches.Strings, sets.texts),
    Row(batches.SentenceBatches, sets.sentences, sets.padded),
    Row(batches.FindsBoxes, sets.scenes, sets.listed),
    # State outside of the trainable parameters
    Row(teachers.Distilled),
    Row(teachers.MomentumTeacher),
    Row(teachers.MeanTeacher),
    Row(teachers.Queue),
    Row(teachers.Centred),
    Row(teachers.TargetNetwork),
    Row(teachers.AveragedWeights),
    Row(teachers.NewTeacher),
    Row(teachers.MemoryBank),
    Row(teachers.UnfreezesAtEpoch),
    Row(teachers.UnfreezesAtStep),
    Row(teachers.FreezesAtStep),
    Row(teachers.FreezesStatistics),
    Row(teachers.ReplacesParameter),
    Row(teachers.ReplacesStorage),
    Row(teachers.ExtraState),
    Row(teachers.ExtraTensor),
    Row(teachers.CountsSteps),
    Row(teachers.CountsForEver),
    # Buffers
    Row(buffers.Counts),
    Row(buffers.DataDependentStart),
    Row(buffers.Codebook),
    Row(buffers.NewTensors),
    Row(buffers.SharedBuffer),
    Row(buffers.NoneAtFirst),
    Row(buffers.Grows),
    Row(buffers.TakesShape),
    Row(buffers.RegistersLate),
    Row(buffers.Expanded),
    Row(buffers.SparseBuffer),
    Row(buffers.NotSaved),
    Row(buffers.OtherNumbers),
    # Optimizers, schedules and hooks
    Row(optimizers.Adam),
    Row(optimizers.Groups),
    Row(optimizers.RMSprop),
    Row(optimizers.LBFGS),
    Row(optimizers.Sparse, sets.labelled_tokens),
    Row(optimizers.OwnOptimizer),
    Row(optimizers.TwoSchedules),
    Row(optimizers.Sequential),
    Row(optimizers.OneCycle),
    Row(optimizers.CosineByEpochs),
    Row(optimizers.TimmSchedule),
    Row(optimizers.WarmUp),
    Row(optimizers.SkipsSteps),
    Row(optimizers.ByEpoch),
    Row(optimizers.ByStep),
    Row(optimizers.ByProgress),
    Row(optimizers.ByLoader),
    Row(optimizers.ReadsTrainer),
    Row(optimizers.StopsItself),
    Row(optimizers.GathersAll),
    Row(optimizers.ByDevices),
    Row(optimizers.ClipsItself),
    Row(optimizers.OwnBackward),
    Row(optimizers.NoisyGradients),
    Row(optimizers.HookedGradients),
    Row(optimizers.SkipsBatches),
    Row(optimizers.ReturnsMore),
    Row(optimizers.LeavesEarly),
    Row(optimizers.MovesBatches),
    # Manual optimization
    Row(manual.Manual),
    Row(manual.AccumulatesItself),
    Row(manual.TakesClosures),
    Row(manual.Sharpness),
    Row(manual.SparseAndDense, sets.labelled_tokens),
    Row(manual.TruncatedBackpropagation, sets.series),
    Row(manual.GAN),
    Row(manual.ClippedCritic),
    Row(manual.PenalisedCritic),
    Row(manual.TogglesModel),
    Row(manual.TogglesFrozen),
    Row(manual.SharedEncoder),
    # Metrics
    Row(logs.Logs, sizes=UNEVEN),
    Row(logs.Accuracies),
    Row(logs.Collections),
    Row(logs.Lists),
    Row(logs.ComputesItself),
    Row(logs.SamplesInValidation),
    Row(logs.Feeds),
]

"""How good the network of a run is at some moment: each process takes its part of the images."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch

from vitrine.core.runtime import Runtime
from vitrine.data.batch import Batch
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import Source
from vitrine.data.subset import select
from vitrine.evaluate.classification import Classification, count_hits, summarise_counts
from vitrine.evaluate.features import Features, Split, extract_features
from vitrine.evaluate.few_shot import evaluate_few_shot
from vitrine.recipe import Recipe
from vitrine.run.data import RunData, build_evaluation_loader
from vitrine.train.loop import TrainState
from vitrine.train.metrics import Record
from vitrine.train.parallel import Parallel


class Measurer:
    """Measures with the averaged weights, if there are any, and in the precision of the run."""

    def __init__(
        self, recipe: Recipe, runtime: Runtime, data: RunData, preprocessing: Preprocessing, parallel: Parallel
    ) -> None:
        self.recipe, self.runtime, self.data, self.preprocessing = recipe, runtime, data, preprocessing
        self.parallel = parallel

    def watch(self, state: TrainState) -> tuple[float, Record]:
        """In the course of the run: what the best is chosen by, the higher the better, and all that was measured.

        Without labels to learn from it is the few-shot accuracy, if that is asked for, else the objective's own.
        """
        source, shots = self.data.watched, self.recipe.evaluation.few_shot
        assert source is not None
        is_supervised = self.recipe.objective == "supervised"
        found = self.measure_accuracy(state, source) if is_supervised else self.measure_objective(state, source)
        score = next(iter(found.values()))
        record = {f"{self.data.watched_name}_{name}": value for name, value in found.items()}
        if shots > 0:
            record[f"few_shot_{shots}"] = few_shot = self.measure_few_shot(state, source, shots)
            score = score if is_supervised else few_shot
        return score, record

    def measure_accuracy(self, state: TrainState, source: Source) -> Record:
        found = self.classify(state, source)
        record = {"top1": found.top1, "top5": found.top5}
        if found.loss is not None and self.recipe.supervised.loss == "softmax":  # of which it is; another would mislead
            record["loss"] = found.loss
        return record

    def measure_objective(self, state: TrainState, source: Source) -> Record:
        """What the objective itself says of the images, with the same random choices at every evaluation."""
        names = (*state.objective.metric_names, "loss")
        sums = torch.zeros(1 + len(names), dtype=torch.float64)
        with self.evaluating(state), torch.no_grad():
            for batch in self.read(source):
                output = state.objective(replace(batch, step=0).to(self.runtime.device))
                if len(batch) > 0:  # several processes go through as many batches, the last of which may be empty
                    values = torch.stack([{**output.metrics, "loss": output.loss}[name] for name in names])
                    sums += len(batch) * torch.cat([torch.ones(1), values.float().cpu()]).double()
        num_images, *totals = self.runtime.sum(sums).tolist()
        return {name: total / num_images for name, total in zip(names, totals, strict=True)}

    def classify(self, state: TrainState, source: Source) -> Classification:
        with self.evaluating(state):
            counts = count_hits(state.objective.classify, self.read(source), self.runtime.device)
        return summarise_counts(self.runtime.sum(counts))

    def read(self, source: Source) -> Iterator[Batch]:
        """This process's part of the images."""
        loader = build_evaluation_loader(
            source, self.preprocessing, self.recipe, rank=self.runtime.rank, num_ranks=self.runtime.num_ranks
        )
        return loader.read_once()

    def measure_few_shot(self, state: TrainState, queries: Source, shots: int) -> float:
        """From `shots` training images of each class; every process computes all the features, and has the same figure."""
        few = select(self.data.train, f"{shots}/class", self.recipe.seed)
        with self.evaluating(state):
            split = Split(self.featurise(state, few), self.featurise(state, queries), len(self.data.class_names))
        return evaluate_few_shot(split, shots, seeds=(self.recipe.seed,)).mean

    def featurise(self, state: TrainState, source: Source) -> Features:
        loader = build_evaluation_loader(source, self.preprocessing, self.recipe)
        return extract_features(state.objective.featurise, loader.read_once(), self.runtime.device)

    @contextmanager
    def evaluating(self, state: TrainState) -> Iterator[None]:
        with ExitStack() as stack:
            if state.average is not None:
                stack.enter_context(state.average.applied())
            stack.enter_context(self.parallel.evaluating())
            yield

"""How good the network of a run is at some moment: each process takes its part of the images."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from vitrine.core.runtime import Runtime
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

    def watch(self, state: TrainState) -> tuple[Classification, Record]:
        """In the course of the run: the accuracy that the best is chosen by, and all that was measured."""
        assert self.data.watched is not None
        name, shots = self.data.watched_name, self.recipe.evaluation.few_shot
        found = self.classify(state, self.data.watched)
        record = {f"{name}_top1": found.top1, f"{name}_top5": found.top5}
        if found.loss is not None and self.recipe.supervised.loss == "softmax":  # of which it is; another would mislead
            record[f"{name}_loss"] = found.loss
        if shots > 0:
            record[f"few_shot_{shots}"] = self.measure_few_shot(state, self.data.watched, shots)
        return found, record

    def classify(self, state: TrainState, source: Source) -> Classification:
        loader = build_evaluation_loader(
            source, self.preprocessing, self.recipe, rank=self.runtime.rank, num_ranks=self.runtime.num_ranks
        )
        with self.evaluating(state):
            counts = count_hits(state.objective.classify, loader.read_once(), self.runtime.device)
        return summarise_counts(self.runtime.sum(counts))

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

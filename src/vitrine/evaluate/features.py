"""What a frozen model makes of images: one row of features for each, with its label, for everything that is fitted to them.

Letters: B images of a batch, N in all, D features, K classes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrine.data.batch import Batch
from vitrine.data.preprocessing import Preprocessing
from vitrine.evaluate.ridge import require_one_class_each
from vitrine.models.model import Model

Featurise = Callable[[Tensor], Tensor]  # from raw images, as in `Batch.image`, to features (B, D)


@dataclass(frozen=True)
class Features:
    """Rows in the order of the batches."""

    values: Tensor
    """float32 (N, D), on the processor; all finite."""
    labels: Tensor
    """int64 (N), or float (N, K) where images have several."""
    index: Tensor
    """int64 (N): the number of each image in its source."""

    def __post_init__(self) -> None:
        shapes = [tuple(tensor.shape) for tensor in (self.values, self.labels, self.index)]
        if tuple(map(len, shapes)) not in ((2, 1, 1), (2, 2, 1)) or len({shape[0] for shape in shapes}) > 1:
            raise ValueError(
                f"values, labels and index have shapes {', '.join(map(str, shapes))}, and (N, D), (N) or (N, K), and (N) with "
                "the same N were needed: give one row for each image."
            )
        is_bad = ~self.values.isfinite().all(dim=1)
        if is_bad.any():
            raise ValueError(
                f"The features of {int(is_bad.sum())} of {len(self)} images (the first has index "
                f"{int(self.index[is_bad][0])}) are infinite or not a number, and finite ones were needed: check the model's "
                "weights, or compute in higher precision."
            )

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class Split:
    """To fit something to, and to measure it on."""

    train: Features
    test: Features
    num_classes: int

    def __post_init__(self) -> None:
        require_one_class_each(self.train.labels, self.num_classes, "The labels to train on")
        require_one_class_each(self.test.labels, self.num_classes, "The labels to test on")
        if self.train.values.shape[1] != self.test.values.shape[1]:
            raise ValueError(
                f"Images to train on have {self.train.values.shape[1]} features, those to test on "
                f"{self.test.values.shape[1]}, and as many were needed: compute both with the same model."
            )


def build_featuriser(model: Model, preprocessing: Preprocessing) -> Featurise:
    """Normalise, encode, pool: what the last linear layer reads (`pre_logits` in the released code).

    The model stays in the mode that it is in: for features that do not change from one call to the next, call
    `model.eval()` first, or dropout is at work.
    """

    def featurise(images: Tensor) -> Tensor:
        return model.pool(model.encode(preprocessing.normalise(images)))

    return featurise


def extract_features(featurise: Featurise, batches: Iterable[Batch], device: torch.device | str = "cpu") -> Features:
    """Over batches that bring every image once, as `Loader.read_once` does, given to `featurise` on the device.

    No model is put into evaluation mode here: that is the caller's, as for `build_featuriser`.
    """
    values: list[Tensor] = []
    labels: list[Tensor] = []
    index: list[Tensor] = []
    for batch in batches:
        with torch.no_grad():  # not inference_mode, whose tensors a sharded model would keep for its next training step
            rows = featurise(batch.image.to(device, non_blocking=True))
        if rows.ndim != 2 or len(rows) != len(batch):
            raise ValueError(
                f"featurise gave shape {tuple(rows.shape)} for {len(batch)} images, and ({len(batch)}, D) was needed: "
                "pool what the model returns."
            )
        values.append(rows.float().cpu())
        labels.append(batch.label.cpu())
        index.append(batch.index)
    if sum(map(len, index)) == 0:
        raise ValueError("There is no image to compute features of: check the data and its split.")
    # Joined outside of inference mode, features are tensors like others, on which a layer can be trained.
    return Features(values=torch.cat(values), labels=torch.cat(labels), index=torch.cat(index))

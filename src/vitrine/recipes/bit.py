"""Big Transfer (arXiv:1912.11370): its SGD for pre-training, which appendix D.1 of arXiv:2010.11929 compares with Adam, and
its rule for fine-tuning, by which that paper's ResNets were tuned as well (appendix B.1.1)."""

from collections.abc import Callable

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
from vitrine.data.mixing import Mixing
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe, with_changes
from vitrine.recipes.finetune import Transfer, TransferRecipe
from vitrine.recipes.pretrain import JFT, build_pretraining
from vitrine.train.config import MachineConfig, OptimConfig

# Sizes of data at which the rule changes, and the side of images that are small.
FEW_IMAGES, MANY_IMAGES, SMALL_SIDE = 20_000, 500_000, 96


def jft_r50x1_sgd() -> Recipe:
    """R50x1 on JFT-300M for 7 epochs by BiT's SGD (table 7).

    Expect 78.24 % top-1 on ImageNet after fine-tuning (table 7); Adam gives 77.54 % (jft-r50x1).
    Cost: 50 exaFLOPs (table 6).

        vitrine train jft-r50x1-sgd --data.source DIR
    """
    return build_sgd("R50x1")


def jft_r152x2_sgd() -> Recipe:
    """R152x2 on JFT-300M for 7 epochs by BiT's SGD (table 7).

    Expect 84.37 % top-1 on ImageNet after fine-tuning (table 7); Adam gives 84.97 % (jft-r152x2).
    Cost: 563 exaFLOPs (table 6).

        vitrine train jft-r152x2-sgd --data.source DIR
    """
    return build_sgd("R152x2")


def build_sgd(model: str) -> Recipe:
    """The run by Adam with another optimizer: section 3.3 of BiT."""
    recipe = build_pretraining(JFT, model, epochs=7, learning_rate=0.03 * 4096 / 256)
    optim = {
        "kind": "sgd",
        "momentum": 0.9,
        # Torch's SGD adds decay x weight to the gradient, which the momentum then gathers: L2 regularisation, as BiT means
        # it, and not AdamW's convention of table 3.
        "weight_decay": 1e-4,
        "warmup_steps": 5_000,
        "decay": "piecewise",
        "decay_at": (0.3, 0.6, 0.9),  # where in these 7 epochs is not stated: the shares of BiT's fine-tuning
    }
    return with_changes(recipe, optim=optim)


def hyperrule(transfer: Transfer) -> Recipe:
    """A checkpoint on any data for 500, 10,000 or 20,000 steps: BiT's rule, by the number and size of images (appendix B.1.1).

    Expect 87.54 % top-1 on ImageNet from BiT's R152x4 of JFT-300M, with --model.image-size 480 --augment.resize 512 (table 2).

        vitrine finetune MODEL DATA --recipe hyperrule
    """
    is_few, is_many = transfer.num_images < FEW_IMAGES, transfer.num_images >= MANY_IMAGES
    # As BiT's paper; its code has 512 and 480 for large images, whatever the network.
    resize, image_size = (160, 128) if transfer.image_area < SMALL_SIDE**2 else (448, 384)
    return Recipe(
        model=ModelSettings(checkpoint=transfer.checkpoint, image_size=image_size),
        data=DataConfig(source=transfer.source),
        loader=LoaderConfig(batch_size=512),
        augment=AugmentConfig(crop="random", resize=resize, flip=True),
        mixing=Mixing(mixup=0.0 if is_few else 0.1),
        optim=OptimConfig(
            kind="sgd",
            learning_rate=0.003,
            momentum=0.9,
            weight_decay=0.0,
            warmup_steps=100 if is_few else 500,
            decay="piecewise",
            # The text has 30, 60 and 90 % for all; the code's short schedule falls at steps 200, 300 and 400 of 500.
            decay_at=(0.4, 0.6, 0.8) if is_few else (0.3, 0.6, 0.9),
            max_grad_norm=None,
        ),
        total_steps=500 if is_few else 20_000 if is_many else 10_000,
        machine=MachineConfig(accumulation_steps=8),
    )


BIT_PRETRAINING: dict[str, Callable[[], Recipe]] = {"jft-r50x1-sgd": jft_r50x1_sgd, "jft-r152x2-sgd": jft_r152x2_sgd}
HYPERRULE = TransferRecipe(hyperrule, rates=(0.003,), held_out=0.0)

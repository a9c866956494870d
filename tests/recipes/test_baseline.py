"""The baseline's settings as published, and the counts that follow from them."""

from dataclasses import replace

from vitrine.models.cost import compute_cost
from vitrine.recipes.baseline import imagenet_vit_s16


def test_the_network_has_the_published_parameters() -> None:
    # The figure known is of the one with a linear head; the hidden layer adds a square matrix and its bias.
    model = imagenet_vit_s16().model.resolve(1000)
    linear = replace(imagenet_vit_s16().model, hidden_head=None).resolve(1000)
    assert compute_cost(linear).num_parameters == 21_974_632
    assert compute_cost(model).num_parameters == 21_974_632 + 384 * 384 + 384


def test_settings_are_those_of_big_vision() -> None:
    recipe = imagenet_vit_s16()
    augment, optim = recipe.augment, recipe.optim
    assert (recipe.loader.batch_size, recipe.epochs, recipe.data.held_out) == (1024, 90, 0.01)
    assert (augment.crop, augment.crop_area, augment.crop_ratio, augment.flip) == ("inception", (0.05, 1), (3 / 4, 4 / 3), True)
    assert (augment.rand_augment_ops, augment.rand_augment_magnitude, recipe.mixing.mixup) == (2, 10, 0.2)
    assert (recipe.supervised.loss, recipe.supervised.label_smoothing) == ("softmax", 0)
    assert (optim.kind, optim.learning_rate, optim.warmup_steps, optim.decay, optim.max_grad_norm) == (
        *("adamw", 1e-3, 10_000, "cosine", 1.0),
    )
    # A step there takes the schedule times 1e-4 of a weight, of kernels alone; here the rate times the decay.
    assert optim.learning_rate * optim.weight_decay == 1e-4
    assert optim.decay_mask == "kernels"
    assert (recipe.model.pool, recipe.model.position, recipe.evaluation.resize) == ("mean", "sincos-2d", 256)

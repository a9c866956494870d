"""Random crops, RandAugment, random erasing, mixup and CutMix."""

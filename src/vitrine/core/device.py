"""Where tensors are computed."""


def require_device(name: str) -> None:
    """Whether this machine has the device, found out before anything is loaded for it."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):  # torch's words for no such kind, not compiled in, none there
        raise ValueError(
            f"--device {name} is not on this machine: take cpu, or what torch can use here, as cuda or mps."
        ) from None

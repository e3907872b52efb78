"""The bridge to torch's ecosystem: a layer or model as a torch.nn.Module. See `docs/bridge.md`."""

from handgrad.bridge.module import Bridge, as_module

__all__ = ["Bridge", "as_module"]

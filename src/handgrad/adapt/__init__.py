"""Small changes to a frozen model, trained in its place: low-rank updates, and their files."""

from handgrad.adapt.lora import LoRA, adapted, base_of, merge

__all__ = ["LoRA", "adapted", "base_of", "merge"]

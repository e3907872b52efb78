"""Writing on from a prompt: the cache, sampling, and `generate` itself.

The root offers the function `handgrad.generate`, and Python puts this folder under the same name as soon as anything
of it is imported. Both are meant by one word, so the folder can be called and is then the function.
"""

import sys
from types import ModuleType
from typing import Any


class Callable(ModuleType):
    """A folder that is also the function it is named after."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from handgrad.generate.generate import generate

        return generate(*args, **kwargs)


sys.modules[__name__].__class__ = Callable

"""Who taught this weight: a gradient as a sum over tokens, an error as a sum over branches, and what follows from both.

The root offers the function `handgrad.who`, and Python puts this folder under the same name as soon as anything of it
is imported. Both are meant by one word, so the folder can be called and is then the function.
"""

import sys
from types import ModuleType
from typing import Any


class Callable(ModuleType):
    """A folder that is also the function it is named after."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from handgrad.who.ranked import who

        return who(*args, **kwargs)


sys.modules[__name__].__class__ = Callable

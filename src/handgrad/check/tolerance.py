"""How much rounding is allowed. One place, and never loosened to make a test pass.

float64   a relative norm of 1e-12, without any absolute floor: formulas are compared here
float32   at most twice the error that torch's own autograd makes in float32, both measured against float64
bfloat16  likewise
"""

FLOAT64 = 1e-12
OVER_TORCH = 2.0
DIFFERENCE = 1e-7  # central differences in float64: the step's own error, not ours

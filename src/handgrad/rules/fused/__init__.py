"""Second ways of computing a rule, for size or speed; each equals its explicit pair, which stays the specification."""

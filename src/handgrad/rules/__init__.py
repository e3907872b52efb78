"""The mathematics, one equation a file.

A rule without parameters that layers choose between is wrapped as a `Rule`; the others are two functions, `forward` and
`backward`, called by the layer that has their parameters. Every `source` line names the document an equation follows
("second source": the rebuilding of the Transformer from a recurrent network, see CITATION.cff) and its row in the
catalogue of docs/equations.md. Formulas were derived again and are what the checks hold.
"""

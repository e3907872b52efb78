"""Steps of the argument that train networks: what a design learns, with how many parameters, over several seeds."""

"""The method: groups, assignments, routing, grouped layers, the objective, and the lift of any backbone."""

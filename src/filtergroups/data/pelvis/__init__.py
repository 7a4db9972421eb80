"""A male pelvis: tissues and anatomy as tables, men drawn around them, and their distances painted as images."""

"""The compact network: what is left of a grouped network when every kernel is in its most probable group."""

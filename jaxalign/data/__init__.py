"""Preference data: the schema, readers, builders of real sources, splits that cannot leak, simulated users."""

"""A training set, dealt to clients: the base classes of all data modules."""

"""The parts of the store's contract that are about one at a time, with their rows. `rota.store` has the whole."""

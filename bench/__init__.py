"""How fast rota is, always as a ratio: beside the raw database and beside its peers, in one run on one machine."""

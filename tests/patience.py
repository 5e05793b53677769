"""How long a test waits for what must come. Only a broken rota takes this long: a disk may stall for half a minute."""

PATIENCE = 120.0

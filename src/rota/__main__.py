"""`python -m rota` is `rota`."""

from rota.cli import main

main()

"""The electors, each behind the seam of `rota.elector`. Imported only when one is wanted."""

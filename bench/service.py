"""The service that the workers of the benchmark run."""

from __future__ import annotations

import os

from rota import Rota

app = Rota(os.environ.get("ROTA_URL", "sqlite:///bench.db"), keep_days=0)


@app.job
async def noop(n: int) -> None: ...


@app.job
def plain(n: int) -> None: ...


@app.job
async def tick() -> None: ...

"""A process that makes ids, one by one and many at a time, and writes them to a file: `URL COUNT FILE`."""

from __future__ import annotations

import asyncio
import sys
from array import array

from rota import Rota


async def make(url: str, count: int) -> array[int]:
    ids = array("q")
    app = Rota(url, migrate=False)
    async with app.client():
        while len(ids) < count:
            ids.extend([await app.ids.next() for _ in range(1000)])
            ids.extend(await app.ids.many(1000))
    return ids


if __name__ == "__main__":
    made = asyncio.run(make(sys.argv[1], int(sys.argv[2])))
    with open(sys.argv[3], "wb") as file:
        made.tofile(file)

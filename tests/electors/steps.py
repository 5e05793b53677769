"""What the state machine above an elector does, one step at a time."""

from __future__ import annotations

from rota.contract.roles import Fence, Seat
from rota.electors.kubernetes import KubernetesElector
from tests.electors.cluster import ROLE


async def look(elector: KubernetesElector, role: str = ROLE) -> Seat:
    [seat], candidates = await elector.look([role])
    assert candidates == []
    return seat


async def try_to_win(elector: KubernetesElector, role: str = ROLE) -> Fence | None:
    seat = await look(elector, role)
    return None if seat.alive else await elector.win(seat)


async def won(elector: KubernetesElector, role: str = ROLE) -> Fence:
    fence = await try_to_win(elector, role)
    assert fence is not None
    return fence

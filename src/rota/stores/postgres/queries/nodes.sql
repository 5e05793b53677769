-- name: lease_node
-- $1 token, $2 milliseconds, $3 the node that is to be continued. No row's `node` and `more`: somebody was faster, ask again.
-- A row that somebody else takes at this moment is passed over; one that was just taken is looked at again as it is now.
with clock as materialized (select rota.microseconds(rota.rota_now()) / 1000 - 1577836800000 as now),
continued as (
    update rota.nodes n set until = greatest(n.until, clock.now) + $2::bigint from clock
    where n.node = $3::integer and n.token = $1::bigint
    returning n.node, n.until
),
expired as materialized (
    select node from rota.nodes
    where until <= (select now from clock) and not exists (select from continued)
    order by until, node limit 1 for update skip locked
),
taken as (
    update rota.nodes n set token = $1::bigint, until = greatest(n.until, clock.now) + $2::bigint from expired, clock
    where n.node = expired.node
    returning n.node, n.until
),
-- At random, so that many who come at once seldom want the same.
unused as materialized (
    select number from generate_series(0, 1023) as number
    where not exists (select from continued) and not exists (select from taken)
        and not exists (select from rota.nodes where node = number)
    order by random() limit 1
),
added as (
    insert into rota.nodes (node, token, until) select number, $1::bigint, now + $2::bigint from unused, clock
    on conflict (node) do nothing
    returning node, until
),
lease as (select * from continued union all select * from taken union all select * from added)
select lease.node, clock.now, lease.until - $2::bigint as begin, lease.until, exists (select from unused) as more
from clock left join lease on true

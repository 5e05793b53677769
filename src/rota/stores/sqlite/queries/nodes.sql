-- name: lease_node
update nodes set until = max(until, ?3) + ?4 where node = ?1 and token = ?2 returning node, until

-- name: lease_node.expired
update nodes set token = ?1, until = max(until, ?2) + ?3
where node = (select node from nodes where until <= ?2 order by until, node limit 1)
returning node, until

-- name: lease_node.unused
insert into nodes (node, token, until)
with recursive numbers (number) as (select 0 union all select number + 1 from numbers where number < 1023)
select number, ?1, ?2 + ?3 from numbers where number not in (select node from nodes) limit 1
returning node, until

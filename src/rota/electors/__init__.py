"""Who decides on leadership: the store (`advisory`, `file`, `lease`), a Kubernetes Lease, or nobody (`standalone`)."""

"""rota has no models. But Django tells only apps that have this module when it has migrated."""

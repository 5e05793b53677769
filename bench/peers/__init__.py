"""Peers: other schedulers and queues on Postgres, measured on the same server in the same run.

Each peer lives in an environment of its own (`install`), where its driver answers the same few questions (`driver.py`,
`driver.mjs`); `measure` asks them and knows no peer. This package imports nothing here: drivers are loaded by
interpreters that have only the peer.
"""

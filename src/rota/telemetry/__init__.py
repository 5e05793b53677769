"""Subscribers of events: what they are called in logs, and later in metrics and traces."""

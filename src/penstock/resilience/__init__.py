"""Resilience: retries, circuit breakers, dead letters, error tracking. One policy a file."""

"""Replicated services on one machine: HAProxy, processes, and as many of them as the requests need."""

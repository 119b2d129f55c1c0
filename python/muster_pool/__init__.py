"""Replicated services on one machine: HAProxy and processes, whose number follows the requests."""

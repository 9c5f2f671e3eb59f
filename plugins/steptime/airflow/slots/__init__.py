"""Slots of a cluster's pool of GPUs: who asks for them, who holds them, and the pools themselves."""

"""Put on a cluster what runs need there: the trainer's code, and its environment or an image."""

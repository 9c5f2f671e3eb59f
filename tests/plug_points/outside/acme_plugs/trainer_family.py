"""The trainer's side of the model family; it imports nothing of steptime's pipeline."""


def build_model(shape, device, device_options):
    return f"a model of ACME on {device}"

"""A launcher: `acmebox run IMAGE COMMAND`."""

from collections.abc import Sequence

from steptime.clusters.containers import ContainerRuntime, ContainerSetup, ImageForm, LaunchCommand


def launch(command: Sequence[str], inside: ContainerSetup) -> LaunchCommand:
    return LaunchCommand(srun_options=(), command=("acmebox", "run", inside.image, *command))


RUNTIME = ContainerRuntime(ImageForm.SIF, launch)

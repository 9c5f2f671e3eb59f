"""A launcher: `acmebox run IMAGE COMMAND`."""

from collections.abc import Sequence

from steptime.clusters.containers import ContainerSetup, ImageForm, LaunchCommand, Launcher


def launch(command: Sequence[str], inside: ContainerSetup) -> LaunchCommand:
    return LaunchCommand(srun_options=(), command=("acmebox", "run", inside.image, *command))


LAUNCHER = Launcher(ImageForm.SIF, launch)

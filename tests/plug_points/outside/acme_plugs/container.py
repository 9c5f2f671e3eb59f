"""A launcher: `acmebox run IMAGE COMMAND`."""

from steptime.clusters.containers import ContainerRuntime, ImageForm, LaunchCommand


def launch(command, inside):
    return LaunchCommand(srun_options=(), command=("acmebox", "run", inside.image, *command))


RUNTIME = ContainerRuntime(ImageForm.SIF, launch)

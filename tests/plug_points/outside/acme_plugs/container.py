"""A launcher: `acmebox run IMAGE COMMAND`."""

from collections.abc import Sequence

from steptime.clusters.containers import ImageForm, Inside, Launcher, Started


def launch(command: Sequence[str], inside: Inside) -> Started:
    return Started(srun_options=(), command=("acmebox", "run", inside.image, *command))


LAUNCHER = Launcher(ImageForm.SIF, launch)

"""Write what the trainer sets in NeMo for each run, flat: `flat_settings.py RUNS.json SETTINGS.json`."""

import json
import sys
import tempfile
from pathlib import Path

from trainer.environment import filter_log, heavy_imports

with heavy_imports():
    from assembled import assembled

    from trainer.cpu.cpu_as_cuda import cpu_as_cuda
    from trainer.run import read_run


def main(runs_path: str, settings_path: str) -> None:
    filter_log()
    settings = []
    with cpu_as_cuda(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.json")
        for content in json.loads(Path(runs_path).read_text()):
            path.write_text(json.dumps(content))
            settings.append(assembled(read_run(path), content["recipe"]["gpus_per_node"]).settings())
    Path(settings_path).write_text(json.dumps(settings))


if __name__ == "__main__":
    main(*sys.argv[1:])

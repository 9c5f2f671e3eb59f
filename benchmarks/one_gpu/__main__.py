"""How much of one GPU the true layers reach: proxies of two depths, trained by a loop without NeMo.

    python benchmarks/one_gpu plan PLAN --gpu-type h100                  # where steptime is installed
    python3 benchmarks/one_gpu measure PLAN/MODEL --output RESULTS       # where the GPU is, for each MODEL
    python3 benchmarks/one_gpu report RESULTS                            # anywhere

`plan` writes a folder for each model and number format, with runs of two depths and a profile. `measure`
trains them one after the other, from any folder, with nothing but torch and numpy; --library names a wheel
or a folder to import from as well (torchao, for fp8). What a run leaves is whole when it ends, whatever
becomes of the next. `report` takes the difference of the two depths for the time of a layer, and from that
the whole model's: its layers, and once what is not in them. `plan --gpu-type cpu` plans tiny models, to try
it all without a GPU.
"""

import argparse
import sys
from pathlib import Path

# A folder that Python runs is itself the place of imports: the package is to be.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from one_gpu import planning, results  # noqa: E402


def main() -> int:
    """Plan, measure or report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    plan = actions.add_parser("plan", help="write the runs")
    plan.add_argument("folder", type=Path, metavar="PLAN")
    plan.add_argument(
        "--gpu-type", default="h100", choices=(*planning.MEMORY_GIB, "cpu"), help="default: h100"
    )
    measure = actions.add_parser("measure", help="train the runs of one model")
    measure.add_argument("model", type=Path, metavar="PLAN/MODEL")
    measure.add_argument("--output", type=Path, required=True, metavar="RESULTS")
    measure.add_argument("--library", type=Path, help="a wheel or a folder to import from, as torchao's")
    measure.add_argument("--compile", help="mode of torch.compile, see one_gpu/train.py")
    measure.add_argument(
        "--within", type=float, default=planning.WITHIN_S, help=f"seconds (default: {planning.WITHIN_S})"
    )
    report = actions.add_parser("report", help="set the results beside the published ones")
    report.add_argument("results", type=Path, metavar="RESULTS")
    arguments = parser.parse_args()
    if arguments.action == "plan":
        planning.write_plan(arguments.folder, arguments.gpu_type)
        return 0
    if arguments.action == "report":
        return results.report(arguments.results)
    trainer = ["--compile", arguments.compile] if arguments.compile else []
    return results.measure(arguments.model, arguments.output, arguments.within, arguments.library, trainer)


if __name__ == "__main__":
    sys.exit(main())

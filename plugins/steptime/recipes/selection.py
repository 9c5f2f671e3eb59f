"""Select the rules of a workload file for a request, and make a recipe for each GPU count."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from steptime.errors import UserError, unknown_value
from steptime.recipes.cluster_files import ClusterFile, read_cluster_file
from steptime.recipes.models import Recipe
from steptime.recipes.notation import select_gpus
from steptime.recipes.request import PlanRequest
from steptime.recipes.workload_file import PROXY_SUFFIX, Configuration, Scaling, Size, Workload
from steptime.recipes.workloads import family_releases, load_workload


@dataclass(frozen=True)
class Selection:
    """The part of a workload that a request selects: one size, GPU type, dtype and kind of scaling."""

    workload: Workload
    size_name: str
    """Key of the size in the file; with `proxy`, it stands for the proxy of that size."""
    proxy: bool
    gpu_type: str
    dtype: str
    scaling: Scaling
    rules: tuple[Configuration, ...]
    cluster: ClusterFile

    @property
    def size(self) -> Size:
        """The selected size, with its limits and steps."""
        return self.workload.sizes[self.size_name]

    @property
    def documented(self) -> tuple[int, ...]:
        """The GPU counts that can be requested, ascending: those of all selected rules."""
        return tuple(sorted({gpus for rule in self.rules for gpus in rule.gpus}))

    def rule(self, gpus: int) -> Configuration:
        """Return the configuration for a GPU count, which must be one of `documented`."""
        return next(rule for rule in self.rules if gpus in rule.gpus)

    def __str__(self) -> str:
        return f"{self.workload.workload} {self.size_name}{PROXY_SUFFIX * self.proxy} on {self.gpu_type}"


def select(request: PlanRequest) -> Selection:
    """Select the part of a workload that a request asks for; workload and cluster provide defaults.

    Raises UserError if the workload or the cluster does not have what is asked for. If the request names a
    family without a release, one release is chosen, and the error lists the other releases.
    """
    cluster = read_cluster_file(request.cluster)
    try:
        return _select(request, cluster)
    except UserError as error:
        releases = family_releases(request.workload)
        meant = load_workload(request.workload).workload if releases else None
        others = ", ".join(name for name in releases if name != meant)
        if not others:
            raise
        raise UserError(f"{error} '{request.workload}' means {meant}; other releases are {others}.") from None


def _select(request: PlanRequest, cluster: ClusterFile) -> Selection:
    workload = load_workload(request.workload)
    cluster_gpu_type = cluster.gpu_type
    size_name, proxy = _size(workload, request, cluster_gpu_type)
    size = workload.sizes[size_name]
    rules = size.proxies if proxy else size.configurations
    what = f"{workload.workload} {size_name}{PROXY_SUFFIX * proxy}"

    gpu_type = _gpu_type(workload, request, rules, cluster_gpu_type, what)
    rules = tuple(rule for rule in rules if gpu_type in rule.gpu_types)
    what += f" on {gpu_type}"

    dtypes, default = _offered(rules, "dtypes"), workload.defaults.dtype
    dtype = (default if default in dtypes else dtypes[0]) if request.dtype is None else request.dtype.lower()
    if dtype not in dtypes:
        raise unknown_value("dtype", request.dtype, dtypes, of=what)
    rules = tuple(rule for rule in rules if dtype in rule.dtypes)

    scaling = _scaling(request.scaling, rules, size.configurations, what)
    return Selection(
        workload=workload,
        size_name=size_name,
        proxy=proxy,
        gpu_type=gpu_type,
        dtype=dtype,
        scaling=scaling,
        rules=tuple(rule for rule in rules if scaling in rule.global_batch_size),
        cluster=cluster,
    )


def _size(workload: Workload, request: PlanRequest, cluster_gpu_type: str) -> tuple[str, bool]:
    """Return the size's key in the workload file, and whether the request is for the size's proxy."""
    if request.size is None:
        return _default_size(workload, request, cluster_gpu_type), request.proxy
    name = request.size.lower()
    if name not in workload.size_names():
        raise unknown_value("size", request.size, workload.size_names(), of=workload.workload)
    proxy = request.proxy or name not in workload.sizes
    name = name if name in workload.sizes else name.removesuffix(PROXY_SUFFIX)
    if proxy and not workload.sizes[name].proxies:
        with_proxy = [key for key, size in workload.sizes.items() if size.proxies]
        listed = ", ".join(with_proxy) or "none"
        raise UserError(
            f"{workload.workload} {name} has no proxy: leave `proxy` out; sizes that have one: {listed}."
        )
    return name, proxy


def _default_size(workload: Workload, request: PlanRequest, cluster_gpu_type: str) -> str:
    if request.proxy:
        for name, size in workload.sizes.items():
            if size.proxies:
                return name
        raise UserError(f"no size of {workload.workload} has a proxy: leave `proxy` out.")
    gpu_type = cluster_gpu_type if request.gpu_type is None else request.gpu_type.lower()
    names = [
        name
        for name, size in workload.sizes.items()
        if gpu_type in _offered(size.configurations, "gpu_types")
    ]
    if not names and request.gpu_type is None:
        raise _runs_elsewhere(workload, workload.workload, request, cluster_gpu_type, workload.gpu_types)
    if not names:
        raise _unknown_gpu_type(workload, request.gpu_type or "", workload.gpu_types, workload.workload)
    return workload.defaults.size if workload.defaults.size in names else names[0]


def _gpu_type(
    workload: Workload,
    request: PlanRequest,
    rules: Sequence[Configuration],
    cluster_gpu_type: str,
    what: str,
) -> str:
    offered = _offered(rules, "gpu_types")
    if request.gpu_type is not None:
        if request.gpu_type.lower() not in offered:
            raise _unknown_gpu_type(workload, request.gpu_type, offered, what)
        return request.gpu_type.lower()
    if cluster_gpu_type in offered:
        return cluster_gpu_type
    if len(offered) > 1:
        raise _runs_elsewhere(workload, what, request, cluster_gpu_type, offered)
    return offered[0]


def _runs_elsewhere(
    workload: Workload, what: str, request: PlanRequest, cluster_gpu_type: str, offered: Iterable[str]
) -> UserError:
    reason = workload.unsupported_gpu_types.get(cluster_gpu_type)
    because = "" if reason is None else f" ({reason})"
    return UserError(
        f"{what} does not run on {cluster_gpu_type}{because}, which cluster '{request.cluster}' has: "
        f"name a cluster that has one of {', '.join(offered)}, or such a GPU type to see a plan."
    )


def _unknown_gpu_type(workload: Workload, requested: str, offered: Iterable[str], what: str) -> UserError:
    if (reason := workload.unsupported_gpu_types.get(requested.lower())) is None:
        return unknown_value("GPU type", requested, offered, of=what)
    return UserError(
        f"{what} does not run on {requested.lower()}: {reason}. Valid GPU types are: {', '.join(offered)}."
    )


def _offered(rules: Sequence[Configuration], field: Literal["gpu_types", "dtypes"]) -> tuple[str, ...]:
    """Return all values of the field among the rules, in the file's order."""
    return tuple(dict.fromkeys(value for rule in rules for value in getattr(rule, field)))


def _scaling(
    requested: str, rules: Sequence[Configuration], all_rules: Sequence[Configuration], what: str
) -> Scaling:
    kinds: tuple[Scaling, ...] = get_args(Scaling)
    offered = [kind for kind in kinds if any(kind in rule.global_batch_size for rule in rules)]
    for scaling in kinds:
        if requested.lower() == scaling and scaling in offered:
            return scaling
        if requested.lower() == scaling:
            offering = [rule for rule in all_rules if scaling in rule.global_batch_size]
            elsewhere = f"; {scaling} is for {', '.join(_offered(offering, 'gpu_types'))}" if offering else ""
            raise UserError(
                f"{scaling} scaling is not offered for {what}, only {' and '.join(offered)}{elsewhere}."
            )
    raise unknown_value("scaling", requested, kinds)


def select_recipes(selection: Selection, request: PlanRequest) -> list[Recipe]:
    """Return a recipe for each requested GPU count, ascending.

    Raises UserError for a GPU count that the selection does not have.
    """
    return [
        selection.workload.recipe(
            selection.size_name,
            selection.rule(gpus),
            dtype=selection.dtype,
            gpu_type=selection.gpu_type,
            scaling=selection.scaling,
            gpus=gpus,
            tensor_parallel=_tensor_parallel(selection, request, gpus),
        )
        for gpus in _gpu_counts(selection, request)
    ]


def _gpu_counts(selection: Selection, request: PlanRequest) -> tuple[int, ...]:
    """Return the requested GPU counts; by default those of the size, else the smallest valid one.

    If a checkpoint is saved or loaded, the default is a GPU count at which that is tested, if there is one.
    """
    if request.gpus is not None:
        try:
            return select_gpus(request.gpus, selection.documented, of=str(selection))
        except UserError as error:
            raise UserError(f"{error}{_with_or_without_proxy(selection)}") from None
    least = _least_of_checkpoints(selection, request)
    possible = [
        gpus for gpus in selection.documented if gpus >= least and gpus % (request.tensor_parallel or 1) == 0
    ]
    preferred = tuple(gpus for gpus in selection.size.default_gpus or () if gpus in possible)
    return preferred or tuple(possible[:1]) or selection.documented[:1]


def _with_or_without_proxy(selection: Selection) -> str:
    """Return a sentence about the GPU counts of the size's proxy, or of the full size for a proxy, if any."""
    size = selection.size
    counts = {
        gpus
        for rule in (size.configurations if selection.proxy else size.proxies)
        if selection.gpu_type in rule.gpu_types
        for gpus in rule.gpus
    }
    listed = ", ".join(map(str, sorted(counts)))
    if not counts:
        return ""
    if selection.proxy:
        return f" Without `proxy`, GPU counts are: {listed}."
    return f" The proxy of {selection.size_name} has: {listed}; ask for it with `proxy`."


def _least_of_checkpoints(selection: Selection, request: PlanRequest) -> int:
    """Return the smallest GPU count at which the requested checkpoint is tested; 1 without a limit."""
    limits = selection.size.checkpoint
    if limits is None or not (request.checkpoint or request.save_checkpoint or request.load_checkpoint):
        return 1
    minima = (limits.minimum_gpus_to_save, limits.minimum_gpus_to_load)
    return max(minimum.get(selection.gpu_type, 1) for minimum in minima)


def _tensor_parallel(selection: Selection, request: PlanRequest, gpus: int) -> int | None:
    tensor, rule = request.tensor_parallel, selection.rule(gpus)
    if tensor is None or tensor == rule.parallelism.tensor or rule.tensor_choices is None:
        return None
    if tensor not in rule.tensor_choices:
        raise unknown_value("tensor parallel", tensor, rule.tensor_choices, of=str(selection))
    if gpus % tensor:
        raise UserError(
            f"`tensor_parallel` {tensor} needs a multiple of {tensor} ranks: leave {gpus} out of `gpus`."
        )
    return tensor

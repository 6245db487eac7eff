"""Documents decoded by workers on several processes or machines, with Ray Data; the ledger stays with the driver.

    driver    JobRunner: prompts -> blocks of tasks -> Ray Data -> outcomes -> validation, results.jsonl, failed.jsonl
    workers   `Worker`, a pool of actors: each loads the model once and decodes blocks by a `LocalExecutor`

Who survives what:

- **A worker is killed.** Ray starts it again and gives it the block again. Outcomes are the same, because a document's
  seed depends on its id alone. A block that kills three workers is decoded again in single documents, and a document
  that kills three more has failed.
- **The driver is killed.** What was written stays; the same command does what is left. The job folder is the
  checkpoint, in place of Ray's ``CheckpointConfig``: it also knows who failed and which text a result was made of, and
  resumes a job that was begun without Ray.

Source: Ray Data's actor pools, https://docs.ray.io/en/latest/data/transforming-data.html
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from decodekit import collector
from decodekit.decoding.prefixes.row_memory import FEW_ROWS
from decodekit.decoding.request.faults import fault_of
from decodekit.errors import DecodekitError, DecodingError, JobError, OptionError
from decodekit.jobs.documents.files import needed
from decodekit.jobs.job_runner import Decoded, DocumentTask, LocalExecutor, failed
from decodekit.records.fingerprints import weights_fingerprint

if TYPE_CHECKING:
    from decodekit.llm import LLM

_BLOCK: Final = 4  # times the batch size: a block is what a killed worker has to do again
_NUM_RETRIES: Final = 2  # of a block whose worker died
_package: Final = partial(needed, extra="ray", why='executor="ray"')
_REACHED: Final = (
    "`ray status` with the same RAY_ADDRESS and the same Ray as the cluster's. A cluster that asks for a token wants "
    'RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here, too; one without, RAY_AUTH_MODE=disabled. Or executor="local"'
)


def model_on_worker(name: str, dtype: str, weights: str, device_map: str | None = None) -> LLM:
    """The model of a job as a worker loads it, of the number type of the driver's model; raises JobError if the machine
    has another model of this name, which the fingerprint of the weights tells."""
    from decodekit.llm import LLM

    llm = LLM.load(name, dtype=dtype, device_map=device_map)
    found = weights_fingerprint(llm.model)
    if found != weights:
        cause = f"the model {name!r} has the weights {found} on a worker, and {weights} on the driver"
        raise JobError(cause, at=os.uname().nodename, hint="one folder for all machines, or a revision")
    return llm


class Worker:
    """The work of an actor: a block of pickled tasks in, their pickled outcomes out, decoded by a `LocalExecutor`."""

    def __init__(
        self, load: Callable[[], LLM], options: Mapping[str, Any], batch_size: int | None, alternatives: bool = False
    ) -> None:
        self._refusal: DecodekitError | None = None
        try:
            llm = load()
        except DecodekitError as error:  # as an answer it arrives whole; what Ray makes of an exception is its text
            self._refusal = error
            return
        self._executor = LocalExecutor(llm, batch_size, options, alternatives)

    def __call__(self, block: Mapping[str, Any]) -> dict[str, list[bytes]]:
        """Decode a block; an exception is the error of the one document that raises it."""
        if self._refusal is not None:
            return {"outcome": [pickle.dumps(self._refusal)]}
        tasks: list[DocumentTask] = list(map(pickle.loads, block["task"]))
        return {"outcome": [_pickled(outcome) for outcome in self._outcomes(tasks)]}

    def _outcomes(self, tasks: list[DocumentTask]) -> Iterator[Decoded]:
        left = {task.id: task for task in tasks}
        try:
            for outcome in self._executor.run(tasks):
                del left[outcome.task.id]
                yield outcome
        except Exception as error:
            if len(tasks) == 1:
                yield failed(tasks[0], fault_of(error, "decoding"))
                return
            for task in left.values():
                yield from self._outcomes([task])


class Actor(Worker):
    """A worker in a process of its own, in which no garbage collector holds up its texts."""

    def __init__(self, *args: Any) -> None:
        collector.take_over()
        super().__init__(*args)
        collector.settle()


def _pickled(outcome: Decoded) -> bytes:
    """An outcome without what the driver makes anew: the value, which may be of a class of the user's."""
    completion = replace(outcome.completion, value=None, others=(), prompt=None)
    try:
        return pickle.dumps(replace(outcome, completion=completion))
    except Exception as error:
        return pickle.dumps(failed(outcome.task, fault_of(error, "decoding")))


@dataclass
class RayExecutor:
    """Decodes in a pool of actors. Ray takes all documents at once, and keeps their texts in its object store.

    The cluster is that of ``RAY_ADDRESS``, else the one that the program has started by ``ray.init``, else one of this
    machine's own processes.

    Args:
        load: makes the model, on a worker; see `model_on_worker`. It is pickled.
        options, batch_size, alternatives: as of `LocalExecutor`.
        num_workers: actors. By default as many as the cluster has GPUs; without any, a CPU less than it has.
    """

    load: Callable[[], LLM]
    options: Mapping[str, Any]
    batch_size: int | None = None
    num_workers: int | None = None
    alternatives: bool = False

    def run(self, tasks: Iterable[DocumentTask]) -> Iterator[Decoded]:
        """Yield the outcome of every task once, in any order.

        Raises:
            OptionError: the workers would take every CPU, or more GPUs than there are.
            JobError: Ray is not installed, or the workers cannot start.
        """
        first = list(itertools.islice(tasks, 1))
        if not first:
            return
        _connect()
        pool = pool_of(self.num_workers)
        size = _BLOCK * (self.batch_size or FEW_ROWS)
        left: dict[str, Any] = {}  # id -> the block that holds the task, until its outcome is known
        stream = itertools.chain(first, tasks)
        while chunk := list(itertools.islice(stream, size)):
            left |= dict.fromkeys((task.id for task in chunk), _block(chunk))
        yield from self._decode(dict.fromkeys(left.values()), left, pool)
        if left:  # what died with its worker, again and again: each alone, so that the others come through
            singles = [_block([_task_in(block, name)]) for name, block in left.items()]
            yield from self._decode(dict.fromkeys(singles), left, pool)
        for name, block in left.items():
            error = DecodingError(
                f"the worker that decodes the document dies, or cannot be reached: {_NUM_RETRIES + 1} attempts",
                hint="its memory, the log of Ray, or a smaller max_new_tokens; then `decodekit retry`",
            )
            yield failed(_task_in(block, name), error)

    def _decode(self, blocks: Iterable[Any], left: dict[str, Any], pool: Mapping[str, Any]) -> Iterator[Decoded]:
        data: Any = _package("ray.data")
        exceptions: Any = _package("ray.exceptions")
        dataset = data.from_arrow_refs(list(blocks)).map_batches(
            Actor,
            fn_constructor_args=(self.load, self.options, self.batch_size, self.alternatives),
            batch_size=None,  # a block, as it is
            compute=data.ActorPoolStrategy(size=pool["size"]),
            num_cpus=1,
            num_gpus=pool["num_gpus"],
            ray_remote_args_fn=lambda: {"max_task_retries": _NUM_RETRIES},
        )
        dataset.context.max_errored_blocks = -1  # they are done again, alone
        dataset.context.enable_progress_bars = False
        num_before = len(left)
        try:
            for batch in dataset.iter_batches(batch_size=None, prefetch_batches=0):
                for pickled in batch["outcome"]:
                    outcome: Decoded | DecodekitError = pickle.loads(pickled)
                    if isinstance(outcome, DecodekitError):
                        raise outcome
                    if left.pop(outcome.task.id, None) is not None:
                        yield outcome
        except exceptions.RayError as error:
            if len(left) == num_before:
                said = [line.strip() for line in str(error).splitlines() if line.strip()][-1:]
                cause = f"the workers of Ray decode nothing: {type(error).__name__}: {' '.join(said)}"
                hint = 'the log of Ray, in its session\'s folder; executor="local" to see it here'
                raise JobError(f"{cause:.600}", hint=hint) from error


def check_pool(num_workers: int | None) -> None:
    """Refuse a pool that cannot be, before a model is loaded, with the errors of `RayExecutor.run`.

    A cluster that there is already is asked; of one that would be started on this machine its processors tell enough.
    """
    ray: Any = sys.modules.get("ray")
    if os.environ.get("RAY_ADDRESS") or (ray is not None and ray.is_initialized()):
        _connect()
        pool_of(num_workers)
    else:
        _check_cpus(num_workers or 1, os.cpu_count() or 1, "this machine")


def pool_of(num_workers: int | None) -> dict[str, Any]:
    """Size and GPUs of the pool on the cluster that is connected; raises OptionError if it cannot be."""
    ray = _package("ray")
    resources = ray.cluster_resources()
    num_cpus, num_gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    number = num_workers or num_gpus or max(1, num_cpus - 1)
    _check_cpus(number, num_cpus, "the cluster")
    if num_gpus and number > num_gpus:
        cause = f"{number} workers need a GPU each, and the cluster has {num_gpus}"
        raise OptionError(cause, at="num_workers", hint=f"num_workers={num_gpus}")
    return {"size": number, "num_gpus": 1 if num_gpus else None}


def _check_cpus(num_workers: int, num_cpus: int, where: str) -> None:
    if num_workers >= num_cpus:
        cause = f"{num_workers} workers take every CPU of {where}, which has {num_cpus}, and Ray Data waits for ever"
        fits = f"num_workers={num_cpus - 1}" if num_cpus > 1 else 'executor="local"'
        raise OptionError(cause, at="num_workers", hint=f"{fits}, or a cluster with more")


def _block(tasks: list[DocumentTask]) -> Any:
    """Tasks in the object store."""
    ray, arrow = _package("ray"), _package("pyarrow")
    return ray.put(arrow.table({"task": [pickle.dumps(task) for task in tasks]}))


def _task_in(block: Any, name: str) -> DocumentTask:
    ray = _package("ray")
    tasks: Iterator[DocumentTask] = map(pickle.loads, ray.get(block)["task"].to_pylist())
    return next(task for task in tasks if task.id == name)


def _connect() -> None:
    """Connect to the cluster, or start one; classes of the user's own files go to the workers by value."""
    ray = _package("ray")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS") or "local"
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # of connections, of addresses, of Ray's own kinds, of gRPC
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), "it says nothing")
            what = "Ray cannot start" if address == "local" else f"the cluster of Ray at {address!r} cannot be reached"
            cause = f"{what}: {type(error).__name__}: {said}"
            raise JobError(f"{cause:.600}", at="RAY_ADDRESS", hint=_REACHED) from error
    for name, module in list(sys.modules.items()):
        if name.startswith("_decodekit_schema_"):
            ray.cloudpickle.register_pickle_by_value(module)

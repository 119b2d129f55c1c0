"""Ranks as processes of this host, without a launcher."""
import multiprocessing
import os
import secrets
import tempfile

from .errors import error

__all__ = ["spawn"]


def _rank(function, arguments, rank, ranks, folder, job, results):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                      MUSTER_JOB=job, MUSTER_RENDEZVOUS=f"file:{folder}")
    try:
        results.send((True, function(*arguments)))
    except BaseException as failure:
        try:
            results.send((False, failure))
        except Exception:  # it cannot be pickled
            results.send((False, error(f"{type(failure).__name__}: {failure}")))
        raise


def spawn(function, ranks, *arguments):
    """Calls ``function(*arguments)`` in ``ranks`` new processes and returns their results, by rank.

    In them ``muster.context()`` connects the ranks. The function belongs to a module, since the processes import it. When a
    rank raises an exception the others get a peer_failure in their collectives; the first exception is raised here.
    """
    multi = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        job = f"spawn-{os.getpid()}-{secrets.token_hex(4)}"
        pipes = [multi.Pipe(duplex=False) for _ in range(ranks)]
        processes = [multi.Process(target=_rank, args=(function, arguments, rank, ranks, folder, job, pipe[1]))
                     for rank, pipe in enumerate(pipes)]
        try:
            for process in processes:
                process.start()
            for _, sender in pipes:
                sender.close()
            return _collect(processes, [receiver for receiver, _ in pipes])
        finally:
            for process in processes:
                if process.is_alive():
                    process.terminate()
                process.join()


def _collect(processes, receivers):
    """Returns the results by rank; raises the first exception that is no report of another rank's."""
    results, failures, waiting = {}, [], dict(enumerate(receivers))
    while waiting:
        ready = multiprocessing.connection.wait(list(waiting.values()))
        for rank, receiver in list(waiting.items()):
            if receiver not in ready:
                continue
            del waiting[rank]
            try:
                is_good, value = receiver.recv()
            except EOFError:
                processes[rank].join()
                is_good, value = False, error(f"rank {rank} ended without a result (exit status {processes[rank].exitcode})")
            if is_good:
                results[rank] = value
            else:
                failures.append(value)
    if failures:
        raise next((one for one in failures if type(one).__name__ != "peer_failure"), failures[0])
    return [results[rank] for rank in range(len(processes))]

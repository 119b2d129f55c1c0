"""Functions that muster.spawn calls in processes, which import this module."""
import numpy

import muster


def sum_of_ranks(first):
    with muster.context() as context:
        data = numpy.full(2, first + context.world.rank)
        return float(context.world.allreduce(data)[0])


def failing_rank():
    with muster.context() as context:
        if context.world.rank == 1:
            raise ZeroDivisionError("of rank 1")
        context.world.allreduce(numpy.zeros(1))

"""Divides the cores that services leave among the trainings, as ranks."""
import math

ROUNDING = 1e-9


def divide(cores, limits, replicas, lacking, members):
    """Returns {name: ranks} of the running members. `replicas` are the (account, cores) of current replicas, `lacking`
    are the (priority, account, cores) that services lack. No member has less than its minimum. Further cores are
    assigned by priority, to services before trainings, and to the training with the fewest cores. No account exceeds
    its limit."""
    free, left = cores, dict(limits)

    def take(account, amount):
        nonlocal free
        free -= amount
        left[account] = left.get(account, math.inf) - amount

    def fits(account, amount):
        return amount <= min(free, left.get(account, math.inf)) + ROUNDING

    members = [each for each in members if each.most]
    sizes = {each.name: each.least for each in members}
    for account, amount in [*replicas, *((each.account, each.least * each.cores) for each in members)]:
        take(account, amount)
    for priority in sorted({each[0] for each in lacking} | {each.priority for each in members}, reverse=True):
        for _, account, amount in filter(lambda each: each[0] == priority, lacking):
            if fits(account, amount):
                take(account, amount)
        while grows := [each for each in members if each.priority == priority and sizes[each.name] < each.most and fits(each.account, each.cores)]:
            smallest = min(grows, key=lambda each: sizes[each.name] * each.cores)
            sizes[smallest.name] += 1
            take(smallest.account, smallest.cores)
    return sizes

"""How many ranks each training gets of the cores that services leave."""
import math

ROUNDING = 1e-9


def divide(cores, limits, replicas, lacking, members):
    """{name: ranks} of the members that run. `replicas` are (account, cores) of what has cores now, `lacking` are (priority, account, cores)
    of what services lack. None has less than its least; beyond that cores go by priority, to services before trainings,
    and to the training that has the fewest; no account gets more than its limit."""
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

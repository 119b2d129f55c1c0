"""The number of replicas that a service needs: the rule of Knative's autoscaler
(pkg/autoscaler/scaling/autoscaler.go)."""
import collections
import math

LOOK = 2.0                 # seconds between two decisions
SHORTEST = 0.1             # seconds between two measurements
MOST_UP, MOST_DOWN = 1000, 2   # largest factor up and down at a decision


class Scaler:
    """Averages the measurements over the stable and the panic window. While the panic window exceeds its threshold, and
    for a stable window after, replicas are only added."""

    def __init__(self, service):
        self.service = service
        self._measured = collections.deque()   # (time, value)
        self._panics_until = None
        self._most = 0
        self._decided = -math.inf
        self.wanted = service.minimum
        self.why = ""

    def record(self, now, value):
        if self._measured and now - self._measured[-1][0] < SHORTEST:
            return   # extra checks must not add weight
        self._measured.append((now, value))
        while self._measured[0][0] < now - self.service.window:
            self._measured.popleft()

    def activate(self, now):
        """Counts a request that found no replica as one measurement, for any duration."""
        if self.wanted == 0:
            self.wanted = 1
            self._measured.append((now, 1))

    def average(self, now, window):
        values = [value for at, value in self._measured if at > now - window]
        return sum(values) / len(values) if values else 0.0

    def decide(self, now, ready):
        """Returns the number of replicas; `ready` replicas are ready now."""
        if now - self._decided < LOOK:
            return self.wanted
        self._decided = now
        service, ready = self.service, max(ready, 1)
        stable, panic = (math.ceil(self.average(now, window) / service.target) for window in (service.window, service.panic_window))
        if panic / ready >= service.panic_threshold:
            self._panics_until = now + service.window
        elif self._panics_until is not None and now > self._panics_until:
            self._panics_until, self._most = None, 0
        if self._panics_until is not None:
            self._most = max(self._most, min(panic, ready * MOST_UP))
            wanted = self._most
        else:
            wanted = min(max(stable, ready // MOST_DOWN), ready * MOST_UP)
        self.wanted = min(max(wanted, service.minimum), service.maximum)
        self.why = (f"{service.metric} {self.average(now, service.window):.1f} in {service.window:g} s, "
                    f"{self.average(now, service.panic_window):.1f} in {service.panic_window:g} s, target {service.target:g}"
                    f"{', panic' if self._panics_until is not None else ''}")
        return self.wanted

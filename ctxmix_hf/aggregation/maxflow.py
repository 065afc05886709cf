"""Maximum flow through layered graphs in float64: Dinic's algorithm on dense layers, compiled where numba is there.

Written for one purpose: the same graph, many (start, sink) pairs. Compiled it takes well under a
millisecond per pair; as plain Python it gives the same numbers, slowly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import numba
    from numba import njit, prange

    COMPILER: Any = numba
except ImportError:  # the extra [flow] brings it
    COMPILER = None
    prange = range  # type: ignore[misc]

    def njit(*args: Any, **kwargs: Any) -> Any:  # type: ignore[no-redef]
        return (lambda function: function) if not (args and callable(args[0])) else args[0]


Array = NDArray[Any]
TINY = 1e-15  # an edge with less room than this is full
ENOUGH = 1e-13  # a flow this close to its upper bound is maximal


@njit(cache=True)
def _levels(
    capacity: Array, flow: Array, layer: int, start: int, sink: int, level: Array, queue: Array
) -> bool:
    """Steps to the sink over edges with room left, breadth first from the sink; False when the start cannot reach it.

    `level[l, i]` belongs to node (l, i). Counting from the sink keeps the search out of dead ends.
    """
    n = capacity.shape[1]
    level[:] = -1
    level[0, sink] = 0
    queue[0, 0], queue[0, 1] = 0, sink
    head, tail = 0, 1
    while head < tail:
        here, i = queue[head]
        head += 1
        next_level = level[here, i] + 1
        if 0 <= level[layer, start] < next_level:
            return True
        if here < layer:
            for k in range(n):  # from above, by an edge with room
                if level[here + 1, k] < 0 and capacity[here, k, i] - flow[here, k, i] > TINY:
                    level[here + 1, k] = next_level
                    queue[tail, 0], queue[tail, 1] = here + 1, k
                    tail += 1
        if here > 1:
            for m in range(n):  # from below, by taking flow back
                if level[here - 1, m] < 0 and flow[here - 1, i, m] > TINY:
                    level[here - 1, m] = next_level
                    queue[tail, 0], queue[tail, 1] = here - 1, m
                    tail += 1
    return level[layer, start] >= 0


@njit(cache=True)
def _next_step(
    capacity: Array, flow: Array, level: Array, here: int, i: int, step: int, layer: int
) -> int:
    """The first usable step of node (here, i) from `step` on: 0..n-1 go down, n..2n-1 take flow back; 2n for none."""
    n = capacity.shape[1]
    wanted = level[here, i] - 1
    if step < n:
        for j in range(step, n):
            if (
                level[here - 1, j] == wanted
                and capacity[here - 1, i, j] - flow[here - 1, i, j] > TINY
            ):
                return j
        step = n
    if (
        here < layer and wanted >= here + 1
    ):  # a node above is at least its own layer away from the sink
        for j in range(step - n, n):
            if level[here + 1, j] == wanted and flow[here, j, i] > TINY:
                return n + j
    return 2 * n


@njit(cache=True)
def _push(
    capacity: Array,
    flow: Array,
    layer: int,
    start: int,
    sink: int,
    level: Array,
    step: Array,
    path: Array,
) -> float:
    """A blocking flow in the level graph: depth first, each node remembers where it stopped looking."""
    n = capacity.shape[1]
    step[:] = 0
    total = 0.0
    depth = 0
    path[0, 0], path[0, 1] = layer, start
    while True:
        here, i = path[depth]
        if here == 0:
            amount = np.inf
            for k in range(depth):
                a, b = path[k]
                s = step[a, b]
                amount = min(
                    amount,
                    capacity[a - 1, b, s] - flow[a - 1, b, s] if s < n else flow[a, s - n, b],
                )
            total += amount
            full = -1
            for k in range(depth):
                a, b = path[k]
                s = step[a, b]
                if s < n:
                    flow[a - 1, b, s] += amount
                    left = capacity[a - 1, b, s] - flow[a - 1, b, s]
                else:
                    flow[a, s - n, b] -= amount
                    left = flow[a, s - n, b]
                if full < 0 and left <= TINY:
                    full = k  # go back to the first edge that is full now
            depth = max(full, 0)
            continue
        s = _next_step(capacity, flow, level, here, i, step[here, i], layer)
        step[here, i] = s
        if s < 2 * n:
            depth += 1
            path[depth, 0], path[depth, 1] = (here - 1, s) if s < n else (here + 1, s - n)
        elif depth == 0:
            return total
        else:
            depth -= 1
            step[path[depth, 0], path[depth, 1]] += 1


@njit(cache=True)
def deliverable(capacity: Array, sink: int) -> Any:
    """`[L, n]`: what node (l, k) alone could deliver to the sink at most, from the bottom up."""
    layers, n = capacity.shape[0], capacity.shape[1]
    reach = np.zeros((layers, n))
    reach[0] = capacity[0, :, sink]
    for here in range(1, layers):
        for k in range(n):
            for m in range(n):
                reach[here, k] += min(capacity[here, k, m], reach[here - 1, m])
    return reach


@njit(cache=True)
def _first_guess(
    capacity: Array, reach: Array, layer: int, start: int, sink: int, amount: float, flow: Array
) -> float:
    """A feasible flow near the maximum: shared out downwards by the room below, then trimmed
    upwards where it got stuck.
    """
    n = capacity.shape[1]
    excess = np.zeros(n)
    excess[start] = amount
    for here in range(layer - 1, -1, -1):
        given = np.zeros(n)
        for k in range(n):
            if excess[k] <= 0.0:
                continue
            if here == 0:
                flow[0, k, sink] = min(excess[k], capacity[0, k, sink])
                continue
            room = 0.0
            for m in range(n):
                room += min(capacity[here, k, m], reach[here - 1, m] - given[m])
            share = min(1.0, excess[k] / room) if room > 0.0 else 0.0
            for m in range(n):
                x = share * min(capacity[here, k, m], reach[here - 1, m] - given[m])
                flow[here, k, m] = x
                given[m] += x
        excess = given
    for here in range(1, layer):  # what a node passes on is what it may take in
        for m in range(n):
            out = flow[here - 1, m].sum()
            into = flow[here, :, m].sum()
            if into > out:
                flow[here, :, m] *= out / into
    return flow[layer - 1, start].sum()


@njit(cache=True)
def one_flow(capacity: Array, reach: Array, layer: int, start: int, sink: int) -> float:
    """Maximum flow from (layer, start) to (0, sink); `capacity[l-1, i, j]` is the edge (l, i) -> (l-1, j)."""
    n = capacity.shape[1]
    if layer == 1:
        return capacity[0, start, sink]
    flow = np.zeros((layer, n, n))
    level = np.empty((layer + 1, n), dtype=np.int32)
    step = np.empty((layer + 1, n), dtype=np.int32)
    queue = np.empty(((layer + 1) * n, 2), dtype=np.int32)
    path = np.empty(((layer + 1) * n + 1, 2), dtype=np.int32)
    most = min(capacity[layer - 1, start].sum(), capacity[0, :, sink].sum())
    total = _first_guess(capacity, reach, layer, start, sink, most, flow)
    while most - total > ENOUGH and _levels(
        capacity[:layer], flow, layer, start, sink, level, queue
    ):
        gained = _push(capacity[:layer], flow, layer, start, sink, level, step, path)
        if gained <= TINY:
            break
        total += gained
    return min(total, most)


@njit(cache=True, parallel=True)
def deliverable_to_all(capacity: Array) -> Any:
    """`[n, L, n]`: `deliverable` for every input token."""
    n = capacity.shape[1]
    reach = np.zeros((n, capacity.shape[0], n))
    for sink in prange(n):
        reach[sink] = deliverable(capacity, sink)
    return reach


@njit(cache=True, parallel=True)
def flows_from(capacity: Array, reach: Array, layer: int, starts: Array) -> Any:
    """`[starts, n]`: flows from some nodes of a layer to every input token; `reach` of `deliverable_to_all`.

    A flow that the sink limits is solved from the sink: the search is short from the end with the tighter bound.
    """
    n = capacity.shape[1]
    result = np.zeros((starts.shape[0], n))
    for b in prange(starts.shape[0]):
        start = starts[b]
        turned = np.empty((layer, n, n))
        for here in range(layer):
            turned[layer - 1 - here] = capacity[here].T
        back = deliverable(turned, start)
        out = capacity[layer - 1, start].sum()
        for sink in range(n):
            if out <= capacity[0, :, sink].sum():
                result[b, sink] = one_flow(capacity, reach[sink], layer, start, sink)
            else:
                result[b, sink] = one_flow(turned, back, layer, sink, start)
    return result
